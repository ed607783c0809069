"""Collects the scalars of all TensorBoard event files under a folder as JSON: {metric: {step: value}}.

Usage: python tests/json_dump_tb_logs.py LOG_DIR --output_path metrics.json
"""

import argparse
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nemo_rl.utils.jsonio import write_json


def collect(log_dir: Path) -> dict[str, dict[str, float]]:
    """All event files merged; where two hold the same step of a metric, the file changed last wins."""
    files = sorted(log_dir.rglob("events.out.tfevents.*"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    if not files:
        raise FileNotFoundError(f"no TensorBoard event files under {log_dir}")
    merged: dict[str, dict[str, float]] = {}
    for file in files:
        # size_guidance 0: keep every point; the default thins long series out
        events = EventAccumulator(str(file), size_guidance={"scalars": 0})
        events.Reload()
        for name in events.Tags()["scalars"]:
            merged.setdefault(name, {}).update({str(point.step): point.value for point in events.Scalars(name)})
    return {
        name: dict(sorted(points.items(), key=lambda item: int(item[0]))) for name, points in sorted(merged.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log_dir", type=Path)
    parser.add_argument("--output_path", type=Path, default=Path("metrics.json"))
    arguments = parser.parse_args()
    try:
        metrics = collect(arguments.log_dir)
    except FileNotFoundError as error:
        sys.exit(str(error))
    write_json(arguments.output_path, metrics)
    print(f"{len(metrics)} metrics written to {arguments.output_path}")


if __name__ == "__main__":
    main()
