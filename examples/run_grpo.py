"""GRPO with LoRA on Megatron policy workers and vLLM rollouts.

uv run examples/run_grpo.py                                        a tiny model learns in minutes, on a CPU
uv run examples/run_grpo.py --config FILE key=value ...            anything else
uv run examples/run_grpo.py --config FILE --dry-run                what would run
"""

import sys
from pathlib import Path

from nemo_rl.config.cli import entry_point
from nemo_rl.config.plan import describe_plan
from nemo_rl.config.schema import MasterConfig

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "grpo_tiny_cpu.yaml"


def run(config: MasterConfig) -> int:
    from nemo_rl.algorithms.main import run_grpo

    return run_grpo(config)


if __name__ == "__main__":
    sys.exit(entry_point(sys.argv[1:], DEFAULT_CONFIG, MasterConfig, describe_plan, run))
