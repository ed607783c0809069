"""Model, tokenizer and prompts of a run, checked against each other."""

import logging
import os
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from nemo_rl.config.schema import CheckpointingConfig, EngineConfig, MasterConfig, PeftConfig, TrainedPolicyConfig
from nemo_rl.data.datasets.registry import load_records, load_splits
from nemo_rl.data.datasets.response import default_split
from nemo_rl.data.errors import DataError
from nemo_rl.data.interfaces import Prompt
from nemo_rl.data.loader import check_enough
from nemo_rl.data.prompts import PromptBuilder
from nemo_rl.data.settings import DatasetSettings, Record
from nemo_rl.data.tokenizer import load_tokenizer, validate_model_folder
from nemo_rl.distributed.environments import Accelerator
from nemo_rl.experience.store import step_files
from nemo_rl.policy.adapter_folder import AdapterError, check_adapter_folder
from nemo_rl.utils.checkpoint_files import CheckpointError, megatron_checkpoint
from nemo_rl.utils.tiny_model import resolve_model

logger = logging.getLogger(__name__)

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""As vLLM's CPUAttentionBackend has them; asking it would cost every start the import of vLLM."""


@dataclass(frozen=True)
class RunData:
    """What the driver knows before any worker starts."""

    model_path: str
    model_config: Any
    tokenizer: Any
    train: list[Prompt]
    validation: list[Prompt]


def cache_folder() -> Path:
    """Where models made on the spot are kept: NEMO_RL_CACHE, by default below the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nemo_rl"
    return Path(os.environ.get("NEMO_RL_CACHE", default))


@dataclass(frozen=True)
class LoadedModel:
    """A model folder that was found sound, its text config, and the tokenizer."""

    path: str
    config: Any
    tokenizer: Any


def load_model(policy: TrainedPolicyConfig) -> LoadedModel:
    """Check model folder and tokenizer against each other; DataError with one sentence for what is wrong."""
    path = str(resolve_model(policy.model_name, cache_folder()))
    name = str(resolve_model(policy.tokenizer.name, cache_folder()))
    tokenizer = load_tokenizer(name, policy.tokenizer.chat_template, policy.trust_remote_code)
    validate_model_folder(path, tokenizer, policy.trust_remote_code)
    return LoadedModel(path, overridden_config(policy, path).get_text_config(), tokenizer)


def overridden_config(policy: TrainedPolicyConfig, model_path: str) -> Any:
    """The model's config with `hf_config_overrides`. DataError for what transformers, by which the trainer reads it,
    drops or merges otherwise than vLLM does: trainer and engine would be different models."""
    from transformers import AutoConfig, PreTrainedConfig

    try:
        config, dropped = AutoConfig.from_pretrained(
            model_path,
            trust_remote_code=policy.trust_remote_code,
            return_unused_kwargs=True,
            **deepcopy(policy.hf_config_overrides),
        )
    except (StrictDataclassError, TypeError, ValueError) as error:  # the folder itself was found sound
        problem = " ".join(str(error).split())
        found = f"policy.hf_config_overrides={policy.hf_config_overrides}"
        raise DataError(f"{found} does not fit the model {policy.model_name}: {problem}") from error
    for key, value in policy.hf_config_overrides.items():
        if key in dropped:
            hint = "; the base of rotary positions is in rope_parameters" if key == "rope_theta" else ""
            raise DataError(f"policy.hf_config_overrides: the config of {policy.model_name} has no {key!r}{hint}")
        if isinstance(getattr(config, key, None), PreTrainedConfig) and any(
            isinstance(v, dict) for v in value.values()
        ):
            raise DataError(f"policy.hf_config_overrides.{key} may hold no mappings: vLLM would merge them otherwise")
    return config


def check_starting_points(checkpointing: CheckpointingConfig, peft: PeftConfig) -> None:
    """DataError unless the adapter and the base that training is told to start from are there and fit."""
    adapter, base = checkpointing.adapter_path, checkpointing.pretrained_checkpoint
    if adapter is not None:
        try:
            check_adapter_folder(Path(adapter), peft.dim, peft.alpha)
        except AdapterError as error:
            raise DataError(f"checkpointing.adapter_path: {error}") from error
    if base is not None:
        try:
            megatron_checkpoint(base)
        except CheckpointError as error:
            raise DataError(f"checkpointing.pretrained_checkpoint: {error}") from error


def check_layout(config: TrainedPolicyConfig, model: Any) -> None:
    """DataError where this model cannot be cut as asked, which Megatron would say only once its workers run."""
    megatron = config.megatron_cfg
    tp, pp = megatron.tensor_model_parallel_size, megatron.pipeline_model_parallel_size
    heads = model.num_attention_heads
    groups = getattr(model, "num_key_value_heads", None) or heads
    if heads % tp or (groups % tp and tp % groups):
        raise DataError(
            f"policy.megatron_cfg.tensor_model_parallel_size={tp} does not divide {config.model_name}: it has {heads} "
            f"attention heads and {groups} key-value heads"
        )
    ends = (megatron.num_layers_in_first_pipeline_stage, megatron.num_layers_in_last_pipeline_stage)
    if ends == (None, None) and model.num_hidden_layers % pp:
        raise DataError(
            f"policy.megatron_cfg.pipeline_model_parallel_size={pp} does not divide the {model.num_hidden_layers} "
            f"layers of {config.model_name}; choose another, or set num_layers_in_first_pipeline_stage"
        )
    if megatron.peft.enabled and megatron.peft.dim % tp:
        raise DataError(
            f"policy.megatron_cfg.peft.dim={megatron.peft.dim} must be a multiple of "
            f"policy.megatron_cfg.tensor_model_parallel_size={tp}: Megatron cuts A along its rank"
        )
    _check_layout_of_experts(config, model)


def _check_layout_of_experts(config: TrainedPolicyConfig, model: Any) -> None:
    """Megatron would refuse this only in its first training step."""
    experts = getattr(model, "num_experts", None) or getattr(model, "num_local_experts", None)
    megatron = config.megatron_cfg
    if experts and megatron.tensor_model_parallel_size > 1 and not megatron.sequence_parallel:
        raise DataError(
            "policy.megatron_cfg.sequence_parallel must be true with tensor_model_parallel_size="
            f"{megatron.tensor_model_parallel_size}: {config.model_name} has {experts} experts, which Megatron trains "
            "under tensor parallelism only with it"
        )


def check_heads(config: EngineConfig, model: Any, accelerator: Accelerator) -> None:
    """DataError where vLLM would refuse the model's heads only once its worker has started."""
    size = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    if config.has_engine and not accelerator.is_cuda and size not in CPU_HEAD_SIZES:
        raise DataError(
            f"vLLM's attention on a CPU has no heads of size {size}, which {config.policy.model_name} has: use a GPU "
            f"(cluster.accelerator=cuda) or a model with heads of size {', '.join(map(str, CPU_HEAD_SIZES))}"
        )


def load_data(config: MasterConfig) -> RunData:
    """Load and check model folder, tokenizer and datasets. Raises DataError with one sentence for what is wrong."""
    check_starting_points(config.checkpointing, config.policy.megatron_cfg.peft)
    model = load_model(config.policy)
    check_layout(config.policy, model.config)
    if config.debug.train_from_rollouts is not None:
        step_files(Path(config.debug.train_from_rollouts))
        return RunData(model.path, model.config, model.tokenizer, [], [])
    train, validation = _records(config)
    prompts = _build(config, model.tokenizer, train, config.data.train)
    check_enough(len(prompts), config.grpo.num_prompts_per_step)
    held_out = (
        _build(config, model.tokenizer, validation, config.data.validation or config.data.train) if validation else []
    )
    logger.info("%d training and %d validation prompts", len(prompts), len(held_out))
    return RunData(model.path, model.config, model.tokenizer, prompts, held_out)


def _records(config: MasterConfig) -> tuple[list[Record], list[Record]]:
    train, held_out = load_splits(
        dataset_settings(config, "data.train", config.data.train, "train", config.data.held_out)
    )
    if config.data.validation is not None:
        held_out = load_records(dataset_settings(config, "data.validation", config.data.validation, "test", 0.0))
    return train, held_out


def dataset_settings(config: EngineConfig, key: str, dataset: Any, split: str, held_out: float) -> DatasetSettings:
    """The data package's settings of the dataset in the section `key`, defaults filled in."""
    default = getattr(config.data, "default", None)  # evaluation has one dataset and no defaults
    return DatasetSettings(
        dataset_name=dataset.dataset_name,
        data_path=None if dataset.data_path is None else Path(dataset.data_path),
        split=dataset.split or default_split(dataset.dataset_name, split, local=dataset.data_path is not None),
        subset=dataset.subset,
        seed=config.seed if dataset.seed is None else dataset.seed,
        split_validation_size=held_out,
        size=dataset.size,
        task_params=dataset.task_params,
        env_name=dataset.env_name or getattr(default, "env_name", None),
        input_key=dataset.input_key,
        output_key=dataset.output_key,
        key=key,
    )


def longest_prompt(config: EngineConfig) -> int:
    """Tokens of the longest prompt that is used: a response needs room for one token at least."""
    return min(config.data.max_input_seq_length, config.policy.max_total_sequence_length - 1)


def _build(config: MasterConfig, tokenizer: Any, records: list[Record], dataset: Any) -> list[Prompt]:
    default, kwargs = config.data.default, config.policy.tokenizer.chat_template_kwargs
    prompt_file = dataset.prompt_file or default.prompt_file
    system_file = dataset.system_prompt_file or default.system_prompt_file
    builder = PromptBuilder(
        tokenizer,
        longest_prompt(config),
        None if prompt_file is None else Path(prompt_file),
        None if system_file is None else Path(system_file),
        kwargs,
    )
    return builder.build(records)
