"""The checkpoints of a run: made under a temporary name, renamed when whole, the worst ones deleted."""

import fcntl
import logging
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from nemo_rl.utils.checkpoint_files import (
    CONFIG_FILE,
    INFO_FILE,
    CheckpointError,
    check_compatible,
    load_info,
    sync_directory,
    verify,
    write_manifest,
)
from nemo_rl.utils.jsonio import to_plain, write_json, write_text_atomic

__all__ = ["CheckpointError", "CheckpointManager", "check_compatible", "list_checkpoints", "load_info", "verify"]

log = logging.getLogger(__name__)
LOCK_FILE = ".lock"
_STEP = re.compile(r"step_(\d+)")


def list_checkpoints(directory: Path | str) -> list[Path]:
    """The finished checkpoints in `directory` by step. They are whole only as far as `verify` says so."""
    directory = Path(directory)
    if not directory.is_dir():
        return []
    return sorted((p for p in directory.iterdir() if p.is_dir() and _STEP.fullmatch(p.name)), key=step_of)


def step_of(path: Path) -> int:
    match = _STEP.fullmatch(path.name)
    if match is None:
        raise CheckpointError(f"{path} is not named step_N")
    return int(match[1])


def _lock(directory: Path) -> IO[str]:
    """The open lock file of this process; the system gives it up when the process ends, however it ends."""
    file = (directory / LOCK_FILE).open("a+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        raise CheckpointError(
            f"another run is writing to {directory}; give this one a checkpointing.checkpoint_dir of its own"
        ) from error
    return file


class CheckpointManager:
    """One directory of checkpoints of one run.

    `path = begin(step)`, let the workers write into it, then `finalize(step, training_info, config)`. `training_info`
    is a dict with "metrics" (flat names; `metric_name` is looked up there), "compatibility" (see `check_compatible`)
    and whatever the loop needs to go on. Making a manager removes what an interrupted save left behind, so one process
    writes to a directory at a time, which a lock file sees to: CheckpointError if another one does.
    """

    def __init__(
        self, directory: Path | str, metric_name: str | None, higher_is_better: bool, keep_top_k: int | None
    ) -> None:
        if keep_top_k is not None and keep_top_k < 1:
            raise ValueError(f"keep_top_k must be at least 1, or null to keep all, not {keep_top_k}")
        self.directory = Path(directory)
        self.metric_name = None if metric_name is None else metric_key(metric_name)
        self.higher_is_better = higher_is_better
        self.keep_top_k = keep_top_k
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.directory)
        for leftover in self.directory.glob("tmp_step_*"):
            log.warning("removing %s, left behind by an interrupted save", leftover)
            shutil.rmtree(leftover)

    def begin(self, step: int) -> Path:
        """An empty directory to save into. A finished step_N is never replaced; a broken one is set aside."""
        final = self._final(step)
        if final.exists():
            try:
                verify(final)
            except CheckpointError as error:
                self._set_aside(final, error)
            else:
                raise CheckpointError(f"{final} exists already: resume from it or use another checkpoint_dir")
        path = self._temporary(step)
        path.mkdir()
        return path

    def finalize(self, step: int, training_info: Mapping[str, Any], config: Mapping[str, Any]) -> Path:
        """Completes what `begin(step)` started, makes it durable, and prunes. Returns the path of step_N."""
        temporary, final = self._temporary(step), self._final(step)
        if self.metric_name is not None and self._score(training_info) is None:
            log.warning("checkpoint of step %d has no metric %s: it ranks last", step, self.metric_name)
        write_text_atomic(temporary / CONFIG_FILE, yaml.safe_dump(to_plain(config), sort_keys=False))
        write_json(temporary / INFO_FILE, {**training_info, "step": step})
        write_manifest(temporary, step)
        if final.exists():
            raise CheckpointError(f"{final} appeared while step {step} was being saved")
        temporary.rename(final)
        sync_directory(self.directory)
        self._prune(newest=final)
        return final

    def latest(self, fallback_to_previous: bool = False) -> Path | None:
        """The newest checkpoint, verified; None if there is none.

        A broken one raises, or with `fallback_to_previous` is passed over in favour of the one before, saying so.
        If all are broken the newest one's error is raised: a run never starts afresh over a broken past.
        """
        first_error: CheckpointError | None = None
        for path in reversed(list_checkpoints(self.directory)):
            try:
                verify(path)
            except CheckpointError as error:
                if not fallback_to_previous:
                    raise
                first_error = first_error or error
                log.warning("passing over a checkpoint: %s", error)
            else:
                if first_error is not None:
                    log.warning("resuming from %s instead", path)
                return path
        if first_error is not None:
            raise first_error
        return None

    def best(self) -> Path | None:
        """The checkpoint with the best metric (the newest of equals); None if there is none."""
        ranked = self._ranked()
        return ranked[0] if ranked else None

    def load_info(self, path: Path | str) -> dict[str, Any]:
        return load_info(path)

    def _ranked(self) -> list[Path]:
        """Best first. A checkpoint whose info cannot be read is left out: it is neither best nor deleted."""
        scored = []
        for path in list_checkpoints(self.directory):
            try:
                score = self._score(load_info(path))
            except CheckpointError as error:
                log.warning("not ranked: %s", error)
                continue
            scored.append((-math.inf if score is None else score, step_of(path), path))
        return [path for _, _, path in sorted(scored, key=lambda item: item[:2], reverse=True)]

    def _score(self, info: Mapping[str, Any]) -> float | None:
        """Larger is better; None when the metric is absent or not finite. Without a metric all are equal."""
        if self.metric_name is None:
            return 0.0
        value = info.get("metrics", {}).get(self.metric_name)
        if value is None or not math.isfinite(value):
            return None
        return float(value) if self.higher_is_better else -float(value)

    def _prune(self, newest: Path) -> None:
        if self.keep_top_k is None:
            return
        for path in self._ranked()[self.keep_top_k :]:
            if path == newest:
                continue
            # Renamed first: a deletion cut short must not leave something that looks like a checkpoint.
            doomed = path.rename(self.directory / f"tmp_{path.name}_pruned")
            shutil.rmtree(doomed)

    def _set_aside(self, path: Path, error: CheckpointError) -> None:
        number = 1
        while (target := self.directory / f"broken_{path.name}.{number}").exists():
            number += 1
        log.warning("setting aside as %s: %s", target.name, error)
        path.rename(target)

    def _final(self, step: int) -> Path:
        return self.directory / f"step_{step}"

    def _temporary(self, step: int) -> Path:
        return self.directory / f"tmp_step_{step}"


def metric_key(name: str) -> str:
    """The flat metric name for "val:accuracy" or "train:reward", as NeMo-RL's configurations write them."""
    for short, prefix in (("val:", "validation/"), ("train:", "train/")):
        if name.startswith(short):
            return prefix + name.removeprefix(short)
    return name
