"""What generation, training and weight sync do at the same time: a timeline of an asynchronous run beside a sync one.

python benchmarks/async_timeline.py --steps 20 --output timeline [--config FILE ...] [key=value ...]

Runs each configuration (default: the sync and the asynchronous quickstart), draws when each side worked, prints what a
step spends on generation that nothing else hides and on sync, and writes OUTPUT.png and OUTPUT.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from nemo_rl.algorithms.grpo import grpo_train
from nemo_rl.algorithms.setup import grpo_run
from nemo_rl.config.loader import load_config
from nemo_rl.experience.interfaces import RolloutGroup
from nemo_rl.utils.logging_setup import setup_driver_logging
from nemo_rl.utils.timer import Timer

CONFIGS = Path(__file__).parents[1] / "examples" / "configs"
TRAINER, SYNC, ENGINE, WAITING = "trainer", "weight sync", "engine", "trainer waits"
ROWS = (ENGINE, SYNC, TRAINER, WAITING)
ROW_OF = {
    "generation": ENGINE,
    "exposed_generation": WAITING,
    "weight_sync": SYNC,
    "policy_training": TRAINER,
    "policy_and_reference_logprobs": TRAINER,
}
COLOURS = {ENGINE: "#0072B2", SYNC: "#D55E00", TRAINER: "#009E73", WAITING: "#BBBBBB"}


@dataclass(frozen=True)
class Span:
    """Somebody did something from `start` to `end`, seconds of wall-clock time."""

    row: str
    start: float
    end: float


class RecordingTimer(Timer):
    """Times as `inner` does, and remembers when."""

    def __init__(self, inner: Timer, spans: list[Span]) -> None:
        self.inner, self.spans = inner, spans

    def reset(self) -> None:
        self.inner.reset()

    def add(self, name: str, seconds: float) -> None:
        self.inner.add(name, seconds)

    def seconds(self) -> dict[str, float]:
        return self.inner.seconds()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.time()
        with self.inner(name):
            yield
        if name in ROW_OF:
            self.spans.append(Span(ROW_OF[name], start, time.time()))


def trace(config_path: Path, overrides: list[str]) -> tuple[list[Span], list[dict[str, Any]]]:
    """Spans of a run, and its metrics."""
    spans: list[Span] = []
    with grpo_run(load_config(config_path, overrides)) as run:
        run.timer = RecordingTimer(run.timer, spans)
        next_groups = run.rollouts.next_groups

        def recorded(version: int) -> list[RolloutGroup]:
            groups = next_groups(version)
            spans.extend(
                Span(ENGINE, g.metrics["started_at"], g.metrics["ended_at"])
                for g in groups
                if "started_at" in g.metrics
            )
            return groups

        run.rollouts.next_groups = recorded  # type: ignore[method-assign]
        grpo_train(run)
        history = [dict(line) for line in run.logger.history if "train/loss" in line]
    return spans, history


def merged(spans: list[Span], row: str) -> list[tuple[float, float]]:
    """Stretches of time in which at least one span of the row is open."""
    out: list[tuple[float, float]] = []
    for start, end in sorted((span.start, span.end) for span in spans if span.row == row):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def draw(runs: dict[str, list[Span]], path: Path) -> None:
    figure = Figure(figsize=(13, 2.6 * len(runs)), dpi=110, layout="constrained")
    for axis, (name, spans) in zip(figure.subplots(len(runs), 1, squeeze=False)[:, 0], runs.items(), strict=True):
        origin = min(span.start for span in spans if span.row in (WAITING, ENGINE))
        for height, row in enumerate(reversed(ROWS)):
            stretches = [(start - origin, end - start) for start, end in merged(spans, row)]
            axis.broken_barh(stretches, (height - 0.4, 0.8), color=COLOURS[row])
        axis.set_yticks(range(len(ROWS)), reversed(ROWS))
        axis.set_xlim(left=0)
        axis.set_title(name, loc="left")
        axis.set_xlabel("seconds")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def per_step(history: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over steps after the first, which pays for what happens once."""
    keys = (
        "total_step_time",
        "generation",
        "exposed_generation",
        "weight_sync",
        "policy_training",
        "idle/refit_bubble",
    )
    later = history[1:]
    return {key: statistics.median(line.get(f"timing/train/{key}", 0.0) for line in later) for key in keys}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, action="append")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("timeline"))
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    setup_driver_logging(Console(stderr=True))
    configs = options.config or [CONFIGS / "grpo_tiny_cpu_non_colocated.yaml", CONFIGS / "grpo_tiny_cpu_async.yaml"]
    changes = [f"grpo.max_num_steps={options.steps}", "grpo.val_at_start=false", "checkpointing.enabled=false"]
    runs: dict[str, list[Span]] = {}
    table = Table("seconds per step (median)", *(path.stem for path in configs))
    medians = {}
    for path in configs:
        spans, history = trace(path, [*changes, "grpo.val_period=0", "grpo.val_at_end=false", *options.overrides])
        runs[path.stem], medians[path.stem] = spans, per_step(history)
    for key in next(iter(medians.values())):
        table.add_row(key, *(f"{column[key]:.3f}" for column in medians.values()))
    draw(runs, options.output.with_suffix(".png"))
    record = {"medians": medians, "spans": {name: [asdict(span) for span in spans] for name, spans in runs.items()}}
    options.output.with_suffix(".json").write_text(json.dumps(record), encoding="utf-8")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
