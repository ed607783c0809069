"""Draws reward, engine/trainer agreement and step time of a run: `uv run examples/plot_run.py RUN_DIR`."""

import argparse
from pathlib import Path

from nemo_rl.utils.logger import read_history
from nemo_rl.utils.plots import plot_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path, help="a run's directory, the one with metrics.jsonl")
    parser.add_argument("--output", type=Path, help="where to write the PNG (default: RUN_DIR/run.png)")
    arguments = parser.parse_args()
    if not (arguments.run_dir / "metrics.jsonl").is_file():
        parser.error(f"{arguments.run_dir} has no metrics.jsonl")
    output = arguments.output or arguments.run_dir / "run.png"
    print(plot_run(read_history(arguments.run_dir), output, title=str(arguments.run_dir)))


if __name__ == "__main__":
    main()
