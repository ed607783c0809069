"""From the configuration to vLLM's engine arguments and sampling parameters."""

from typing import Any

from nemo_rl.config.schema import PolicyConfig
from nemo_rl.generation.interfaces import GenerationRequest
from nemo_rl.generation.vllm.receiver import BACKEND

CPU_BATCHED_TOKENS = 2048
EXTENSION = "nemo_rl.generation.vllm.receiver.WorkerExtension"


def engine_arguments(
    policy: PolicyConfig, model_path: str, tokenizer_path: str, *, cpu: bool, seed: int, sleep_mode: bool
) -> dict[str, Any]:
    """Keyword arguments of vllm.EngineArgs. The engine starts with unset weights: the first sync brings them.

    The paths are what `policy.model_name` and `policy.tokenizer.name` stand for.
    """
    from vllm.config import WeightTransferConfig

    generation, vllm = policy.generation, policy.generation.vllm_cfg
    arguments: dict[str, Any] = {
        "model": model_path,
        "tokenizer": tokenizer_path,
        "load_format": "dummy",
        "dtype": vllm.precision,
        "kv_cache_dtype": vllm.kv_cache_dtype,
        "max_model_len": vllm.max_model_len,
        "max_num_seqs": policy.generation_batch_size,
        "tensor_parallel_size": vllm.tensor_parallel_size,
        "pipeline_parallel_size": vllm.pipeline_parallel_size,
        "enable_expert_parallel": vllm.expert_parallel_size > 1,
        "enforce_eager": vllm.enforce_eager,
        "gpu_memory_utilization": vllm.gpu_memory_utilization,
        "enable_prefix_caching": True,
        "skip_tokenizer_init": not generation.stop_strings,
        "logprobs_mode": "processed_logprobs",
        # As in the trainer: its entries of the config, and logits that are not rounded to the model's precision
        # (policy/megatron/model.py and head.py).
        "hf_overrides": policy.hf_config_overrides | {"head_dtype": "float32"},
        "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
        "worker_extension_cls": EXTENSION,
        "trust_remote_code": policy.trust_remote_code,
        "seed": seed,
        "disable_log_stats": True,
        "enable_sleep_mode": sleep_mode,
        # All devices of an engine are its actor's; left to itself, vLLM would ask Ray for others.
        "distributed_executor_backend": "uni" if vllm.tensor_parallel_size * vllm.pipeline_parallel_size == 1 else "mp",
    }
    if cpu:
        arguments["kv_cache_memory_bytes"] = int(vllm.kv_cache_gb_cpu * 2**30)
        # A seeded request whose prompt is cut in two asks its random generator for an offset, which CPU ones lack.
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(CPU_BATCHED_TOKENS, vllm.max_model_len)
    return arguments | generation.vllm_kwargs


def sampling_params(request: GenerationRequest, *, stream: bool) -> Any:
    """vLLM's parameters for one request: the sampled token's own log-probability is always asked for."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or 0,
        max_tokens=request.max_new_tokens,
        seed=request.seed,
        stop=list(sampling.stop_strings) or None,
        stop_token_ids=list(sampling.stop_token_ids) or None,
        ignore_eos=sampling.ignore_eos,
        include_stop_str_in_output=True,
        detokenize=bool(sampling.stop_strings),
        logprobs=0,
        flat_logprobs=True,  # plain lists: with logprobs=0 one entry a position, that of the sampled token
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
    )
