"""A run as a person sees it: what is about to happen, the training, a summary."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nemo_rl.algorithms.evaluation import evaluate
from nemo_rl.algorithms.grpo import grpo_train
from nemo_rl.algorithms.run import TrainingRun
from nemo_rl.algorithms.setup import grpo_run
from nemo_rl.algorithms.sft import sft_train
from nemo_rl.algorithms.sft_setup import sft_run
from nemo_rl.config.plan import describe_plan
from nemo_rl.config.plan_sft import describe_eval_plan, describe_sft_plan
from nemo_rl.config.schema import EvalMasterConfig, MasterConfig, SFTMasterConfig
from nemo_rl.utils.logger import read_history
from nemo_rl.utils.logging_setup import setup_driver_logging
from nemo_rl.utils.plots import plot_run
from nemo_rl.utils.progress import final_table

logger = logging.getLogger(__name__)


def run_grpo(config: MasterConfig) -> int:
    """Train by GRPO; the process's exit code."""
    return _run(describe_plan(config), grpo_run(config), grpo_train)


def run_sft(config: SFTMasterConfig) -> int:
    """Fine-tune; the process's exit code."""
    return _run(describe_sft_plan(config), sft_run(config), sft_train)


def run_eval(config: EvalMasterConfig) -> int:
    """Evaluate; the process's exit code."""
    console = Console(stderr=True)
    setup_driver_logging(console)
    console.print(describe_eval_plan(config), markup=False)
    metrics = evaluate(config)
    table = Table("metric", "value", title="Evaluation")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.6g}")
    console.print(table, f"samples and metrics in {escape(config.eval.save_path)}")
    return 0


def _run[AnyRun: TrainingRun](
    plan: str, opening: AbstractContextManager[AnyRun], train: Callable[[AnyRun], None]
) -> int:
    console = Console(stderr=True)
    setup_driver_logging(console)
    console.print(plan, markup=False)
    with opening as run:
        with run.progress:
            train(run)
        summarise(run, console)
    return 0


def summarise(run: TrainingRun, console: Console) -> None:
    """The final table, the plot, and where everything is."""
    plot, rollouts = None, run.logger.run_dir / "rollouts"
    if run.logger.history:
        plot = plot_run(read_history(run.logger.run_dir), run.logger.run_dir / "run.png", run.config.policy.model_name)
    files = {
        "metrics": run.logger.metrics_path,
        "rollouts": rollouts if any(rollouts.iterdir()) else None,
        "plot": plot,
        "checkpoints": None if run.checkpoints is None else run.checkpoints.directory,
    }
    console.print(final_table(run.logger.history, files))
    if run.stopping is not None:
        console.print(f"ended early at step {run.state.step}: {run.stopping}", markup=False)
