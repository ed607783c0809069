"""How good a model is on a dataset: accuracy, unbiased pass@k, and every sample as a line of JSON."""

import logging
import math
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from pydantic import ValidationError

from nemo_rl.algorithms.data_setup import (
    LoadedModel,
    RunData,
    check_heads,
    check_starting_points,
    dataset_settings,
    load_model,
    longest_prompt,
)
from nemo_rl.algorithms.folders import making
from nemo_rl.algorithms.pass_at_k import pass_at_k
from nemo_rl.algorithms.preflight import check_evaluation
from nemo_rl.algorithms.settings import sampling_settings
from nemo_rl.algorithms.setup import open_environments
from nemo_rl.algorithms.validation import answer_metrics, describe, is_right
from nemo_rl.config.loader import resolved_yaml
from nemo_rl.config.messages import problems
from nemo_rl.config.schema import EvalMasterConfig
from nemo_rl.data.datasets.registry import load_records
from nemo_rl.data.errors import DataError
from nemo_rl.data.interfaces import Prompt
from nemo_rl.data.prompts import PromptBuilder
from nemo_rl.distributed.cluster import ray_cluster
from nemo_rl.distributed.engines import plain_engines
from nemo_rl.distributed.environments import Accelerator, resolve_accelerator, worker_environment
from nemo_rl.distributed.workers import start_workers
from nemo_rl.experience.interfaces import RolloutGroup
from nemo_rl.experience.rollouts import Generate, RolloutRunner, RolloutSettings
from nemo_rl.utils.checkpoint_files import CONFIG_FILE, CheckpointError, verify
from nemo_rl.utils.jsonio import write_json, write_jsonl
from nemo_rl.utils.peft_merge import merge_folder
from nemo_rl.weight_sync.publisher import ColocatedPublisher
from nemo_rl.weight_sync.transports import make_synchronizer

logger = logging.getLogger(__name__)


def evaluate(config: EvalMasterConfig) -> dict[str, float]:
    """Answer every problem, write samples.jsonl and metrics.json, return the metrics."""
    config = with_checkpoint_settings(config)
    check_evaluation(config)
    accelerator = resolve_accelerator(config.cluster)
    check_starting_points(config.checkpointing, config.policy.megatron_cfg.peft)
    model = load_model(config.policy)
    prompts = load_prompts(config, model)
    check_heads(config, model.config, accelerator)
    groups: list[RolloutGroup] = []
    with (
        open_environments(config, run_data(model, prompts)) as environments,
        answering(config, model, accelerator) as generate,
    ):
        runner = RolloutRunner(generate, environments, model.tokenizer)
        settings = rollout_settings(config, model.tokenizer.eos_token_id)
        for first in range(0, len(prompts), config.eval.batch_size):
            part = prompts[first : first + config.eval.batch_size]
            ids = [f"evaluation/{prompt.prompt_id}" for prompt in part]
            groups += runner.run(part, ids, config.eval.num_tests_per_prompt, settings)
            logger.info("%d of %d problems, accuracy so far %.4f", len(groups), len(prompts), accuracy(groups))
    metrics = evaluation_metrics(groups, config.eval.num_tests_per_prompt, config.eval.k_value)
    save(config, groups, metrics)
    return metrics


def evaluation_metrics(groups: Sequence[RolloutGroup], tries: int, k: int) -> dict[str, float]:
    """Those of validation, pass@k, and the standard error of the accuracy over problems."""
    metrics = answer_metrics(list(groups), tries)
    rates = [sum(map(is_right, g.rollouts)) / tries for g in groups]
    error = statistics.stdev(rates) / math.sqrt(len(rates)) if len(rates) > 1 else math.nan
    passed = sum(pass_at_k(tries, sum(map(is_right, g.rollouts)), k) for g in groups) / len(groups)
    return metrics | {"accuracy_stderr": error, f"pass@{k}": passed, "num_problems": float(len(groups))}


def accuracy(groups: Sequence[RolloutGroup]) -> float:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return sum(map(is_right, rollouts)) / len(rollouts)


def save(config: EvalMasterConfig, groups: Sequence[RolloutGroup], metrics: dict[str, float]) -> None:
    folder = Path(config.eval.save_path)
    samples = [{**describe(r), "sample_index": r.sample_index} for group in groups for r in group.rollouts]
    write_jsonl(folder / "samples.jsonl", samples)
    write_json(folder / "metrics.json", metrics)
    (folder / "config.yaml").write_text(resolved_yaml(config), encoding="utf-8")


def with_checkpoint_settings(config: EvalMasterConfig) -> EvalMasterConfig:
    """What the saved tensors mean is taken from the checkpoint's own configuration: model, precision, adapters, and how
    its prompts were written. A model, a base or a template that is named for the evaluation is another place of it."""
    if config.eval.checkpoint is None:
        return config
    checkpoint = Path(config.eval.checkpoint)
    try:
        verify(checkpoint)
    except CheckpointError as error:
        raise CheckpointError(f"eval.checkpoint: {error}; name a step_N folder of a run") from error
    run = yaml.safe_load((checkpoint / CONFIG_FILE).read_text(encoding="utf-8"))
    saved = run["policy"]
    tree = config.model_dump(mode="json")
    if config.eval.pretrained_checkpoint is None:
        tree["eval"]["pretrained_checkpoint"] = run["checkpointing"].get("pretrained_checkpoint")
    policy = tree["policy"]
    moved = config.policy.model_name != type(config.policy).model_fields["model_name"].default
    if policy["tokenizer"]["name"] == policy["model_name"] and not (
        moved and saved["tokenizer"]["name"] == saved["model_name"]
    ):
        policy["tokenizer"]["name"] = saved["tokenizer"]["name"]
    for key in ("chat_template", "chat_template_kwargs"):
        if policy["tokenizer"][key] is None:
            policy["tokenizer"][key] = saved["tokenizer"][key]
    for key in ("precision", "hf_config_overrides", "trust_remote_code", *(() if moved else ("model_name",))):
        policy[key] = saved[key]
    policy["megatron_cfg"]["pipeline_dtype"] = policy["generation"]["vllm_cfg"]["precision"] = saved["precision"]
    policy["megatron_cfg"]["peft"] = saved["megatron_cfg"]["peft"]
    try:
        return EvalMasterConfig.model_validate(tree)
    except ValidationError as error:
        raise CheckpointError(f"the settings of eval.checkpoint={checkpoint} do not fit: {problems(error)}") from error


def load_prompts(config: EvalMasterConfig, model: LoadedModel) -> list[Prompt]:
    data = config.data
    builder = PromptBuilder(
        model.tokenizer,
        longest_prompt(config),
        None if data.prompt_file is None else Path(data.prompt_file),
        None if data.system_prompt_file is None else Path(data.system_prompt_file),
        config.policy.tokenizer.chat_template_kwargs,
    )
    records = load_records(dataset_settings(config, "data", data, "test", 0.0))
    return builder.build(records if data.size is None else records[: data.size])


def run_data(model: LoadedModel, prompts: list[Prompt]) -> RunData:
    return RunData(model.path, model.config, model.tokenizer, [], prompts)


@contextmanager
def answering(config: EvalMasterConfig, model: LoadedModel, accelerator: Accelerator) -> Iterator[Generate]:
    """Engines that hold the weights to evaluate, however those come about."""
    with making("eval.save_path", config.eval.save_path):
        Path(config.eval.save_path).mkdir(parents=True, exist_ok=True)
    python = worker_environment(config.cluster, accelerator)
    gpus = config.cluster.gpus_per_node if accelerator.is_cuda else 0
    tokenizer_path = model.tokenizer.name_or_path
    with ExitStack() as stack:
        checkpoint = config.eval.checkpoint
        path, adapter = (model.path, None) if checkpoint else stack.enter_context(weights_on_disk(config, model))
        stack.enter_context(ray_cluster(config.cluster, workers=2 * config.policy_devices + 1, gpus=gpus))
        if checkpoint is None:
            generation = stack.enter_context(plain_engines(config, path, tokenizer_path, accelerator, python, adapter))
            yield generation.generate
            return
        workers = stack.enter_context(start_workers(config, path, tokenizer_path, accelerator, python))
        assert workers.generation is not None
        workers.policy.load_weights(Path(checkpoint) / "policy")
        synchronizer = make_synchronizer(config, workers, accelerator)
        ColocatedPublisher(workers.policy, workers.generation, synchronizer, 0).publish(version=0)
        yield workers.generation.generate


@contextmanager
def weights_on_disk(config: EvalMasterConfig, model: LoadedModel) -> Iterator[tuple[str, str | None]]:
    """(model folder, adapter that vLLM applies): with a merged adapter a temporary copy of the whole model."""
    adapter = config.eval.adapter_path
    if adapter is None:
        yield model.path, None
    elif config.eval.adapter == "native":
        yield model.path, str(Path(adapter).resolve())
    else:
        scratch = Path(tempfile.mkdtemp(prefix="merged-", dir=config.eval.save_path))
        try:
            count = merge_folder(local_folder(model.path), Path(adapter), scratch / "model")
            logger.info("merged %d matrices of %s", count, adapter)
            yield str(scratch / "model"), None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def local_folder(model: str) -> Path:
    """The folder of a model, downloaded if it is a Hub id."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model))
    except OSError as error:
        raise DataError(
            f"model {model!r} cannot be downloaded ({type(error).__name__}); name a local folder"
        ) from error


def rollout_settings(config: EvalMasterConfig, eos_token_id: int | None) -> RolloutSettings:
    """Sampling as in validation: `val_*` where given, else what training uses."""
    generation = config.policy.generation
    return RolloutSettings(
        max_new_tokens=generation.max_new_tokens,
        max_total_tokens=config.policy.max_total_sequence_length,
        max_turns=config.eval.max_rollout_turns,
        sampling=sampling_settings(generation, eos_token_id, validation=True),
        seed=config.seed if generation.seed_per_sample else None,
        template_kwargs=config.policy.tokenizer.chat_template_kwargs or {},
    )
