"""Environment variables that vLLM reads at import. Imports nothing of vLLM, so that the driver can use it."""

from nemo_rl.config.schema import GenerationConfig


def engine_environment(generation: GenerationConfig, *, cpu: bool) -> dict[str, str]:
    """Environment variables that vLLM reads at import."""
    environment = {"VLLM_NO_USAGE_STATS": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    if cpu and not generation.vllm_cfg.async_engine:
        # One process starts in seconds; on a GPU a second one keeps the device busy while outputs are handled.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if cpu:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if generation.vllm_cfg.enforce_eager:
            environment["TORCHDYNAMO_DISABLE"] = "1"
    return environment
