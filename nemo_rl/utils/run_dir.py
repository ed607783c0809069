"""Where a run puts its files: log_dir/exp_001, exp_002, ..."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from nemo_rl.utils.jsonio import write_json

_EXPERIMENT = re.compile(r"exp_(\d+)")
METRICS_FILE = "metrics.jsonl"
RESUMED_FILE = "resumed_from.json"


@dataclass(frozen=True)
class RunOrigin:
    """What a resumed run goes on from: the checkpoint, its step, and the run directory that made it (if known)."""

    checkpoint: Path
    step: int
    run_dir: Path | None = None


def get_run_dir(log_dir: Path | str, origin: RunOrigin | None = None) -> Path:
    """Makes and returns the next free exp_NNN.

    A resumed run gets a directory of its own too, so that no run's files are ever rewritten: `resumed_from.json`
    says where it came from, and the metrics so far are copied (RunLogger cuts them at the resumed step).
    """
    log_dir = Path(log_dir)
    log_dir.mkdir(parents=True, exist_ok=True)
    run_dir = _make_next(log_dir)
    if origin is not None:
        write_json(run_dir / RESUMED_FILE, origin)
        if origin.run_dir is not None and (origin.run_dir / METRICS_FILE).exists():
            shutil.copyfile(origin.run_dir / METRICS_FILE, run_dir / METRICS_FILE)
    return run_dir


def _make_next(log_dir: Path) -> Path:
    taken = [int(match[1]) for entry in log_dir.iterdir() if (match := _EXPERIMENT.fullmatch(entry.name))]
    number = max(taken, default=0) + 1
    while True:
        run_dir = log_dir / f"exp_{number:03d}"
        try:
            run_dir.mkdir()  # fails if another run took the number since we looked
        except FileExistsError:
            number += 1
        else:
            return run_dir
