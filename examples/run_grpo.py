"""GRPO with LoRA on Megatron policy workers and vLLM rollouts.

uv run examples/run_grpo.py                                        a tiny model learns in minutes, on a CPU
uv run examples/run_grpo.py --config FILE key=value ...            anything else
uv run examples/run_grpo.py --config FILE --dry-run                what would run
"""

import sys
from pathlib import Path

from nemo_rl.config.cli import parse_command_line
from nemo_rl.config.errors import ConfigError
from nemo_rl.config.loader import load_config, resolved_yaml
from nemo_rl.config.plan import describe_plan

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "grpo_tiny_cpu.yaml"


def main(arguments: list[str]) -> int:
    try:
        path, overrides, dry_run = parse_command_line(arguments, DEFAULT_CONFIG)
        config = load_config(path, overrides)
    except ConfigError as error:
        print(f"configuration error: {error}", file=sys.stderr)
        return 2
    if dry_run:
        print(resolved_yaml(config))
        print(describe_plan(config))
        return 0
    from nemo_rl.algorithms.main import run_grpo

    return run_grpo(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
