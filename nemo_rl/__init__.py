"""Reinforcement learning for language models: LoRA on Megatron, rolled out by vLLM, orchestrated by Ray."""

import os

# Under `uv run` Ray would pack the working directory and start every worker through uv. We name the workers' Python
# ourselves (nemo_rl.distributed.environments). Ray reads this when it is imported, so it has to be set here.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
