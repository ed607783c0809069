"""Rules of evaluation."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nemo_rl.config.errors import suggestion
from nemo_rl.config.rules.running import BUILT_IN_ENVIRONMENTS

if TYPE_CHECKING:
    from nemo_rl.config.schema.master import EvalMasterConfig


def one_thing_is_evaluated(config: "EvalMasterConfig") -> Iterator[str]:
    evaluated = config.eval
    if evaluated.checkpoint is not None and evaluated.adapter_path is not None:
        yield "eval.checkpoint and eval.adapter_path exclude each other: a checkpoint has its own adapters"
    if evaluated.pretrained_checkpoint is not None and evaluated.checkpoint is None:
        yield "eval.pretrained_checkpoint is the base of eval.checkpoint, which is not set"
    if evaluated.adapter == "native" and evaluated.adapter_path is None:
        yield "eval.adapter=native needs eval.adapter_path; export a checkpoint's adapter to a PEFT folder first"


def tries_are_enough(config: "EvalMasterConfig") -> Iterator[str]:
    k, tries = config.eval.k_value, config.eval.num_tests_per_prompt
    if k > tries:
        yield f"eval.k_value={k} needs eval.num_tests_per_prompt of at least {k}, found {tries}"


def dataset_is_complete(config: "EvalMasterConfig") -> Iterator[str]:
    data = config.data
    if data.dataset_name == "ResponseDataset" and data.data_path is None:
        yield "data.data_path is required with dataset_name=ResponseDataset"
    known = (*BUILT_IN_ENVIRONMENTS, *config.env.__pydantic_extra__)
    if data.env_name is not None and data.env_name not in known:
        allowed = ", ".join(sorted(known))
        near = suggestion(data.env_name, known)
        yield f"data.env_name={data.env_name} is not an environment; known are {allowed}{near}"
    for name, environment in config.env.__pydantic_extra__.items():
        if environment.entry_point is None:
            yield f"env.{name} needs an entry_point (package.module:name), as it is not built in"


def engine_answers_batches(config: "EvalMasterConfig") -> Iterator[str]:
    if config.policy.generation.vllm_cfg.async_engine:
        yield "policy.generation.vllm_cfg.async_engine=true has no use in evaluation, which asks for whole batches"
    if not config.policy.generation.colocated.enabled:
        yield "policy.generation.colocated.enabled=false has no use in evaluation: the trainer only merges weights"


RULES = (one_thing_is_evaluated, tries_are_enough, dataset_is_complete, engine_answers_batches)
