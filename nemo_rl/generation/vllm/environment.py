"""Environment variables that vLLM reads at import. Imports nothing of vLLM, so that the driver can use it."""

from nemo_rl.config.schema import GenerationConfig


def engine_environment(generation: GenerationConfig, *, cpu: bool) -> dict[str, str]:
    """Environment variables that vLLM reads at import; the configuration's own come last."""
    # vLLM's core runs in the engine's own process: to a second one every step's log-probabilities would travel as one
    # small message per sequence (docs/guides/gpu.md). An async engine has a second one all the same.
    environment = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    if generation.vllm_cfg.async_engine:
        # One engine step's outputs are handed to their requests without a pause: weight updates rely on it.
        environment["VLLM_V1_OUTPUT_PROC_CHUNK_SIZE"] = str(1 << 30)
    if cpu:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if generation.vllm_cfg.enforce_eager:
            environment["TORCHDYNAMO_DISABLE"] = "1"
    return environment | (generation.vllm_cfg.env_vars or {})
