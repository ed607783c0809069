"""Supervised fine-tuning with LoRA on Megatron policy workers.

uv run examples/run_sft.py                                         a tiny model learns in a minute, on a CPU
uv run examples/run_sft.py --config FILE key=value ...             anything else
uv run examples/run_sft.py --config FILE --dry-run                 what would run
"""

import sys
from pathlib import Path

from nemo_rl.config.cli import entry_point
from nemo_rl.config.plan_sft import describe_sft_plan
from nemo_rl.config.schema import SFTMasterConfig

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "sft_tiny_cpu.yaml"


def run(config: SFTMasterConfig) -> int:
    from nemo_rl.algorithms.main import run_sft

    return run_sft(config)


if __name__ == "__main__":
    sys.exit(entry_point(sys.argv[1:], DEFAULT_CONFIG, SFTMasterConfig, describe_sft_plan, run))
