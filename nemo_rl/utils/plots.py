"""One picture of a run: is it learning, do engine and trainer agree, and where does the time go."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

History = Sequence[Mapping[str, Any]]

_TIMING = "timing/train/"
_TOTAL = _TIMING + "total_step_time"
_MOST_SECTIONS = 7
# Okabe and Ito's palette, which also the colour-blind can tell apart; grey is kept for what is left over
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_OTHER = "#BBBBBB"


def plot_run(history: History, path: Path | str, title: str = "") -> Path:
    """Writes the four panels as a PNG. A panel whose metrics the run did not log says so."""
    figure = Figure(figsize=(13, 8.5), dpi=110, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, hspace=0.05))
    if title:
        figure.suptitle(title)
    axes = figure.subplots(2, 2)
    _plot_reward(axes[0, 0], history)
    _plot_gen_kl(axes[0, 1], history)
    _plot_mult_prob(axes[1, 0], history)
    _plot_step_time(axes[1, 1], history)
    for axis in axes.flat:
        axis.set_xlabel("step")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        if history:  # the same steps at the same place in every panel
            axis.set_xlim(history[0]["step"] - 0.5, history[-1]["step"] + 0.5)
    path = Path(path)
    figure.savefig(path)
    return path


def series(history: History, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a metric, without the steps where it is absent, null or not finite."""
    points = [(line["step"], line[name]) for line in history if _finite(line.get(name))]
    steps, values = zip(*points, strict=True) if points else ((), ())
    return np.array(steps, dtype=float), np.array(values, dtype=float)


def step_time_split(history: History) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps, and seconds per section on each: outermost sections, the longest first, and `other` to fill the total.

    Nested sections ("training/forward") are part of their outer one and are left out.
    """
    lines = [line for line in history if any(name.startswith(_TIMING) for name in line)]
    steps = np.array([line["step"] for line in lines], dtype=float)
    names = {name for line in lines for name in line if name.startswith(_TIMING) and "/" not in name[len(_TIMING) :]}
    columns = {name: np.array([_or_zero(line.get(name)) for line in lines]) for name in names - {_TOTAL}}
    longest = sorted(columns, key=lambda name: -columns[name].sum())
    split = {name[len(_TIMING) :]: columns[name] for name in longest[:_MOST_SECTIONS]}
    total = np.array([_or_zero(line.get(_TOTAL)) for line in lines])
    rest = total - sum(split.values(), np.zeros(len(lines)))
    split["other"] = np.maximum(rest, 0.0)  # sections that overlap can add up to more than the step took
    return steps, split


def _plot_reward(axis: Axes, history: History) -> None:
    steps, reward = series(history, "train/reward")
    validation_steps, accuracy = series(history, "validation/accuracy")
    if not len(steps) and not len(validation_steps):
        _plot_loss(axis, history)
        return
    axis.set_title("Reward")
    axis.set_ylabel("mean reward, accuracy")
    if len(steps):
        axis.plot(steps, reward, color=_COLOURS[0], label="train/reward", **_markers(steps))
    if len(validation_steps):
        axis.plot(validation_steps, accuracy, color=_COLOURS[1], marker="o", label="validation/accuracy")
    _legend_below(axis, columns=2)


def _plot_loss(axis: Axes, history: History) -> None:
    """What runs without rewards have instead."""
    axis.set_title("Loss")
    axis.set_ylabel("nats per token")
    steps, loss = series(history, "train/loss")
    validation_steps, validation_loss = series(history, "validation/val_loss")
    if not len(steps) and not len(validation_steps):
        _say_absent(axis, "train/reward")
        return
    if len(steps):
        axis.plot(steps, loss, color=_COLOURS[0], label="train/loss", **_markers(steps))
    if len(validation_steps):
        axis.plot(validation_steps, validation_loss, color=_COLOURS[1], marker="o", label="validation/val_loss")
    _legend_below(axis, columns=2)


def _plot_gen_kl(axis: Axes, history: History) -> None:
    axis.set_title("KL(engine ‖ trainer), k3 estimate")
    axis.set_ylabel("gen_kl_error [nats per token]")
    steps, values = series(history, "train/gen_kl_error")
    positive = values > 0  # a logarithm has no place for an exact zero
    if not positive.any():
        _say_absent(axis, "train/gen_kl_error")
        return
    axis.plot(steps[positive], values[positive], color=_COLOURS[2], **_markers(steps))
    axis.set_yscale("log")


def _plot_mult_prob(axis: Axes, history: History) -> None:
    axis.set_title("Token probability ratio, engine to trainer")
    axis.set_ylabel("token_mult_prob_error [≥ 1]")
    steps, values = series(history, "train/token_mult_prob_error")
    if not len(steps):
        _say_absent(axis, "train/token_mult_prob_error")
        return
    axis.axhline(1.0, color=_OTHER, linewidth=1, zorder=0)
    axis.plot(steps, values, color=_COLOURS[3], **_markers(steps))


def _plot_step_time(axis: Axes, history: History) -> None:
    axis.set_title("Step time")
    axis.set_ylabel("seconds")
    steps, split = step_time_split(history)
    if not len(steps):
        _say_absent(axis, "timing/train/*")
        return
    edges = _edges(steps)
    below = np.zeros(len(steps))
    for index, (name, seconds) in enumerate(split.items()):
        colour = _OTHER if name == "other" else _COLOURS[index]
        axis.stairs(below + seconds, edges, baseline=below, fill=True, color=colour, label=name)
        below = below + seconds
    axis.set_ylim(bottom=0)
    _legend_below(axis, columns=3)


def _edges(steps: np.ndarray) -> np.ndarray:
    """The borders between neighbouring steps; the outer two lie half a step outside."""
    return np.concatenate([[steps[0] - 0.5], (steps[1:] + steps[:-1]) / 2, [steps[-1] + 0.5]])


def _markers(steps: np.ndarray) -> dict[str, Any]:
    return {"linewidth": 1.5, "marker": "." if len(steps) <= 60 else ""}


def _legend_below(axis: Axes, columns: int) -> None:
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, frameon=False, fontsize="small")


def _say_absent(axis: Axes, name: str) -> None:
    axis.text(0.5, 0.5, f"{name} was not logged", ha="center", va="center", color="grey", transform=axis.transAxes)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _or_zero(value: Any) -> float:
    return float(value) if _finite(value) else 0.0
