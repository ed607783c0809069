"""The example configurations and which entry point each one belongs to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nemo_rl.config.plan import describe_plan
from nemo_rl.config.plan_sft import describe_eval_plan, describe_sft_plan
from nemo_rl.config.schema import EvalMasterConfig, MasterConfig, RootConfig, SFTMasterConfig

ROOT = Path(__file__).resolve().parents[1]
CONFIG_FOLDER = ROOT / "examples" / "configs"
RECIPE_FOLDER = CONFIG_FOLDER / "recipes" / "llm"
CONFIGS = sorted(CONFIG_FOLDER.rglob("*.yaml"))
RECIPES = sorted(RECIPE_FOLDER.glob("*.yaml"))

Plan = Callable[[Any], str]
ENTRY_POINTS: dict[str, tuple[type[RootConfig], Plan, str]] = {
    "grpo": (MasterConfig, describe_plan, "grpo_tiny_cpu.yaml"),
    "sft": (SFTMasterConfig, describe_sft_plan, "sft_tiny_cpu.yaml"),
    "eval": (EvalMasterConfig, describe_eval_plan, "eval.yaml"),
}
"""Schema, plan and default configuration of examples/run_NAME.py."""


def algorithm_of(path: Path) -> str:
    """The first word of a configuration's name: grpo, sft or eval."""
    return path.stem.replace("-", "_").partition("_")[0]


def root_of(path: Path) -> type[RootConfig]:
    return ENTRY_POINTS[algorithm_of(path)][0]


def plan_of(path: Path) -> Plan:
    return ENTRY_POINTS[algorithm_of(path)][1]
