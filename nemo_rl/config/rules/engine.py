"""Rules of the rollout engine."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_rl.config.schema.master import MasterConfig

_OWNED_ARGUMENTS = {
    "model": "policy.model_name",
    "tokenizer": "policy.tokenizer.name",
    "trust_remote_code": "policy.trust_remote_code",
    "dtype": "policy.generation.vllm_cfg.precision",
    "kv_cache_dtype": "policy.generation.vllm_cfg.kv_cache_dtype",
    "tensor_parallel_size": "policy.generation.vllm_cfg.tensor_parallel_size",
    "pipeline_parallel_size": "policy.generation.vllm_cfg.pipeline_parallel_size",
    "enable_expert_parallel": "policy.generation.vllm_cfg.expert_parallel_size",
    "gpu_memory_utilization": "policy.generation.vllm_cfg.gpu_memory_utilization",
    "max_model_len": "policy.generation.vllm_cfg.max_model_len",
    "enable_sleep_mode": "policy.generation.vllm_cfg.enable_sleep_mode",
    "enforce_eager": "policy.generation.vllm_cfg.enforce_eager",
    "max_num_seqs": "policy.generation_batch_size",
    "seed": "grpo.seed",
    "hf_overrides": "policy.hf_config_overrides",
}
_FIXED_ARGUMENTS = (
    "load_format",
    "logprobs_mode",
    "skip_tokenizer_init",
    "weight_transfer_config",
    "worker_extension_cls",
    "distributed_executor_backend",
)


def engine_arguments_have_one_owner(config: "MasterConfig") -> Iterator[str]:
    for key in config.policy.generation.vllm_kwargs:
        if owner := _OWNED_ARGUMENTS.get(key):
            yield f"policy.generation.vllm_kwargs.{key} is set by {owner}; set that instead"
        if key in _FIXED_ARGUMENTS:
            yield f"policy.generation.vllm_kwargs.{key} cannot be set: training depends on its value"


def engine_axes_are_possible(config: "MasterConfig") -> Iterator[str]:
    vllm = config.policy.generation.vllm_cfg
    if vllm.pipeline_parallel_size > 1 and not vllm.async_engine:
        yield (
            f"policy.generation.vllm_cfg.pipeline_parallel_size={vllm.pipeline_parallel_size} needs "
            "policy.generation.vllm_cfg.async_engine=true"
        )
    if vllm.expert_parallel_size not in (1, vllm.tensor_parallel_size):
        yield (
            f"policy.generation.vllm_cfg.expert_parallel_size={vllm.expert_parallel_size} must be 1 or "
            f"tensor_parallel_size={vllm.tensor_parallel_size}: vLLM spreads experts over the tensor-parallel ranks"
        )


def stop_strings_say_something(config: "MasterConfig") -> Iterator[str]:
    if "" in (config.policy.generation.stop_strings or ()):
        yield "policy.generation.stop_strings holds an empty text, which would end every response at once"


RULES = (engine_arguments_have_one_owner, engine_axes_are_possible, stop_strings_say_something)
