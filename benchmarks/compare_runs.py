"""Several runs in one picture: reward, validation accuracy, and how far engine and trainer are apart.

python benchmarks/compare_runs.py bf16=RUN_FOLDER fp16=RUN_FOLDER --png FILE --json FILE

A run's folder is the one with metrics.jsonl. The JSON holds the curves that are drawn and each run's median step.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nemo_rl.utils.plots import series

# metric, title, scale of its axis, upper limit that is drawn as a line
PANELS = (
    ("train/reward", "Reward in training", "linear", None),
    ("validation/accuracy", "Validation accuracy", "linear", None),
    ("train/gen_kl_error", "gen_kl_error", "log", 1e-3),
    ("train/token_mult_prob_error", "token_mult_prob_error", "linear", 1.02),
)


def read(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def summary(history: list[dict[str, Any]]) -> dict[str, Any]:
    """The curves that are drawn, and the median step with its sections, without the first step."""
    timings = {name for line in history for name in line if name.startswith("timing/train/")}
    later = [line for line in history if line["step"] > 1]
    return {
        "curves": {metric: [values.tolist() for values in series(history, metric)] for metric, *_ in PANELS},
        "medians": {
            name: statistics.median(line[name] for line in later if name in line)
            for name in sorted(timings)
            if any(name in line for line in later)
        },
    }


def draw(axis: Axes, runs: dict[str, list[dict[str, Any]]], panel: tuple[str, str, Any, float | None]) -> None:
    metric, title, scale, limit = panel
    for name, history in runs.items():
        steps, values = series(history, metric)
        axis.plot(
            steps, values, label=name, linewidth=1.2, marker="o" if "validation" in metric else None, markersize=3
        )
    if limit is not None:
        axis.axhline(limit, color="#BBBBBB", linestyle="--")
    axis.set_title(title)
    axis.set_yscale(scale)
    axis.set_xlabel("step")
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN_FOLDER")
    parser.add_argument("--title", default="")
    parser.add_argument("--png", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs = {name: read(Path(folder)) for name, _, folder in (run.partition("=") for run in options.runs)}
    if options.png:
        figure = Figure(figsize=(12, 7.5), dpi=110, layout="constrained")
        figure.suptitle(options.title)
        axes = figure.subplots(2, 2)
        for axis, panel in zip(axes.flat, PANELS, strict=True):
            draw(axis, runs, panel)
        axes[0, 0].legend(frameon=False)
        figure.savefig(options.png)
    if options.json:
        options.json.write_text(json.dumps({name: summary(lines) for name, lines in runs.items()}), encoding="utf-8")


if __name__ == "__main__":
    main()
