"""What a person sees of a long run: a live line per run on a terminal, log lines elsewhere, a table at the end."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

log = logging.getLogger(__name__)

TOKENS_PER_SECOND = "performance/tokens_per_sec_per_gpu"


class RunProgress:
    """Stage of the step, step n of N, reward so far, tokens/s and time left.

    Inside `with RunProgress(total) as progress:` use `with progress.stage("generation"): ...` and `progress.step(...)`.
    Without a terminal the stages are logged at DEBUG and each step as one INFO line.
    """

    def __init__(self, total_steps: int, start_step: int = 0, console: Console | None = None) -> None:
        self.console = console or Console()
        self.stage_name = ""
        self._total, self._first, self._done = total_steps, start_step, start_step
        self._start = time.monotonic()
        self._progress: Progress | None = None
        if self.console.is_terminal:
            self._progress = self._make_display()
            self._task = self._progress.add_task("step", total=total_steps, completed=start_step, **_blank())
            self._live = Live(self._progress, console=self.console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        if self._progress is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._live.stop()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Shows what the step is doing; the name before comes back when an inner stage ends."""
        before = self.stage_name
        self._show_stage(name)
        try:
            yield
        finally:
            self._show_stage(before)

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Step number `step` is done, with these metrics."""
        self._done = step
        remaining = self.seconds_left()
        fields: dict[str, Any] = {
            "reward": _number(metrics.get("train/reward")),
            "loss": _number(metrics.get("train/loss")),
            "rate": _number(metrics.get(TOKENS_PER_SECOND)),
            "eta": "-" if remaining is None else format_seconds(remaining),
        }
        if self._progress is not None:
            self._progress.update(self._task, completed=step, **fields)
            return
        line = f"step {step}/{self._total}"
        if "train/reward" in metrics:
            line += f"  reward {fields['reward']}"
        line += f"  loss {_number(metrics.get('train/loss'))}"
        accuracy = metrics.get("validation/accuracy")
        if accuracy is not None:
            line += f"  validation accuracy {_number(accuracy)}"
        if "validation/val_loss" in metrics:
            line += f"  validation loss {_number(metrics['validation/val_loss'])}"
        log.info("%s  %s tokens/s per device  time left %s", line, fields["rate"], fields["eta"])

    def seconds_left(self) -> float | None:
        """By the mean time of the steps done in this process; None before the first."""
        done = self._done - self._first
        if done <= 0:
            return None
        return (time.monotonic() - self._start) / done * max(self._total - self._done, 0)

    def _show_stage(self, name: str) -> None:
        self.stage_name = name
        if self._progress is not None:
            self._progress.update(self._task, stage=name)
        elif name:
            log.debug("step %d: %s", self._done + 1, name)

    def _make_display(self) -> Progress:
        return Progress(
            TextColumn("[bold]step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("[cyan]{task.fields[stage]:<28}"),
            TextColumn("reward [green]{task.fields[reward]}"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[rate]} tokens/s"),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[eta]}"),
            console=self.console,
        )


def _blank() -> dict[str, Any]:
    return {"stage": "", "reward": "-", "loss": "-", "rate": "-", "eta": "-"}


# label, metric, which is best, digits: a ratio that is close to 1 says nothing in four
_FINAL_ROWS: tuple[tuple[str, str, Callable[..., Any], int], ...] = (
    ("reward", "train/reward", max, 4),
    ("validation accuracy", "validation/accuracy", max, 4),
    ("loss", "train/loss", min, 4),
    ("validation loss", "validation/val_loss", min, 4),
    ("gen_kl_error", "train/gen_kl_error", min, 4),
    ("token_mult_prob_error", "train/token_mult_prob_error", min, 7),
    ("step time (s)", "timing/train/total_step_time", min, 4),
    ("tokens/s per device", TOKENS_PER_SECOND, max, 4),
)


def final_table(history: Sequence[Mapping[str, Any]], files: Mapping[str, Path | str | None]) -> Table:
    """First, last and best value (with its step) of the key metrics; below, where the files are."""
    places = Table.grid(padding=(0, 2))
    for label, path in files.items():
        if path is not None:
            places.add_row(label, Text(str(path), overflow="fold"))
    page = Table.grid()
    page.add_row(_metrics_table(history))
    page.add_row(places)
    return page


def _metrics_table(history: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Run summary")
    table.add_column("metric")
    for column in ("first", "last", "best", "at step"):
        table.add_column(column, justify="right")
    for label, name, pick, digits in _FINAL_ROWS:
        points = [(line["step"], line[name]) for line in history if _is_number(line.get(name))]
        if points:
            step, best = pick(points, key=lambda point: point[1])
            table.add_row(label, *(_number(v, digits) for v in (points[0][1], points[-1][1], best)), str(step))
    return table


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _number(value: Any, digits: int = 4) -> str:
    """That many significant digits, plain where that is short: 0.7312, 12,431, 3.1e-07."""
    if not _is_number(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def format_seconds(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
