"""Environment variables that vLLM reads at import. Imports nothing of vLLM, so that the driver can use it."""

from nemo_rl.config.schema import GenerationConfig


def engine_environment(generation: GenerationConfig, *, cpu: bool) -> dict[str, str]:
    """Environment variables that vLLM reads at import."""
    asynchronous = generation.vllm_cfg.async_engine
    # On CPU this also keeps the model in the engine's process: AsyncLLM starts one child, not two.
    in_process = cpu or not asynchronous
    environment = {"VLLM_NO_USAGE_STATS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_process else "1"}
    if asynchronous:
        environment["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        # One engine step's outputs are handed to their requests without a pause: weight updates rely on it.
        environment["VLLM_V1_OUTPUT_PROC_CHUNK_SIZE"] = str(1 << 30)
    if cpu:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if generation.vllm_cfg.enforce_eager:
            environment["TORCHDYNAMO_DISABLE"] = "1"
    return environment
