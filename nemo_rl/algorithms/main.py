"""A GRPO run as a person sees it: what is about to happen, the training, a summary, one sentence when it fails."""

import logging

from rich.console import Console

from nemo_rl.algorithms.grpo import grpo_train
from nemo_rl.algorithms.run import Run
from nemo_rl.algorithms.setup import grpo_run
from nemo_rl.config.plan import describe_plan
from nemo_rl.config.schema import MasterConfig
from nemo_rl.data.errors import DataError
from nemo_rl.utils.logger import read_history
from nemo_rl.utils.logging_setup import setup_driver_logging
from nemo_rl.utils.plots import plot_run
from nemo_rl.utils.progress import final_table

logger = logging.getLogger(__name__)


def run_grpo(config: MasterConfig) -> int:
    """Train; the process's exit code. User errors are one sentence, everything else keeps its traceback."""
    console = Console(stderr=True)
    setup_driver_logging(console)
    console.print(describe_plan(config))
    try:
        with grpo_run(config) as run:
            with run.progress:
                grpo_train(run)
            summarise(run, console)
    except DataError as error:
        console.print(f"[bold red]error:[/] {error}")
        return 2
    return 0


def summarise(run: Run, console: Console) -> None:
    """The final table, the plot, and where everything is."""
    plot = None
    if run.logger.history:
        plot = plot_run(read_history(run.logger.run_dir), run.logger.run_dir / "run.png", run.config.policy.model_name)
    files = {
        "metrics": run.logger.metrics_path,
        "rollouts": run.logger.run_dir / "rollouts",
        "plot": plot,
        "checkpoints": None if run.checkpoints is None else run.checkpoints.directory,
    }
    console.print(final_table(run.logger.history, files))
    if run.stopping is not None:
        console.print(f"ended early at step {run.state.step}: {run.stopping}")
