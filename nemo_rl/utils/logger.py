"""What a run leaves behind: metrics, rollouts, configuration and environment as local files, and optional trackers."""

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from nemo_rl.utils.environment_info import describe_environment
from nemo_rl.utils.jsonio import dumps, read_jsonl, to_plain, write_json, write_jsonl, write_text_atomic
from nemo_rl.utils.logger_backends import Backend, BackendSettings, make_backends
from nemo_rl.utils.run_dir import METRICS_FILE


class RunLogger:
    """Writes into `run_dir`, always: metrics.jsonl, rollouts/, config.yaml, environment.json.

    metrics.jsonl has one line per step: {"step", "time", "train/reward": ...}. It is flushed at once, and after a
    resume at step k the lines beyond k are dropped, since those steps are about to be done again.
    Used as a context manager it closes its trackers as failed when an exception passes through.
    """

    def __init__(
        self,
        run_dir: Path | str,
        config: Mapping[str, Any],
        backends: BackendSettings | None = None,
        resume_step: int | None = None,
    ) -> None:
        self.run_dir = Path(run_dir)
        (self.run_dir / "rollouts").mkdir(parents=True, exist_ok=True)
        # Trackers first: one that is missing or refuses must stop the run before it looks as if it had begun.
        self._backends: list[Backend] = make_backends(backends or BackendSettings(), self.run_dir, resume_step)
        plain_config = to_plain(config)
        write_text_atomic(self.run_dir / "config.yaml", yaml.safe_dump(plain_config, sort_keys=False))
        write_json(self.run_dir / "environment.json", describe_environment())
        for backend in self._backends:
            backend.log_config(plain_config)
        self.history: list[dict[str, Any]] = self._keep_until(resume_step)
        self._file = self.metrics_path.open("a", encoding="utf-8")

    @property
    def metrics_path(self) -> Path:
        return self.run_dir / METRICS_FILE

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Records all metrics of one step; steps must increase, so merge validation into its step's metrics first."""
        if self.history and step <= self.history[-1]["step"]:
            raise ValueError(f"step {step} was logged after step {self.history[-1]['step']}")
        values = {name: _as_number(name, value) for name, value in metrics.items()}
        line = to_plain({"step": step, "time": time.time(), **values})
        self._file.write(dumps(line) + "\n")
        self._file.flush()
        self.history.append(line)
        for backend in self._backends:
            backend.log_metrics(values, step)

    def log_rollouts(self, rollouts: Iterable[Any], step: int, kind: str | None = None) -> Path:
        """Writes rollouts/step_N.jsonl, or rollouts/KIND_step_N.jsonl; one dataclass or mapping per line."""
        name = f"step_{step}.jsonl" if kind is None else f"{kind}_step_{step}.jsonl"
        path = self.run_dir / "rollouts" / name
        write_jsonl(path, rollouts)
        return path

    def close(self, failed: bool = False) -> None:
        self._file.close()
        backends, self._backends = self._backends, []
        for backend in backends:
            backend.close(failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)

    def _keep_until(self, resume_step: int | None) -> list[dict[str, Any]]:
        """The lines already there up to `resume_step`; the file is rewritten if others followed or one was cut."""
        if not self.metrics_path.exists():
            return []
        if resume_step is None:
            raise FileExistsError(f"{self.metrics_path} exists: give a new run directory or the step to resume at")
        kept = [line for line in read_jsonl(self.metrics_path) if line["step"] <= resume_step]
        write_jsonl(self.metrics_path, kept)
        return kept


def _as_number(name: str, value: Any) -> float:
    """A Python number; NaN and infinity are kept here and become null only in JSON."""
    if hasattr(value, "item"):  # a numpy or torch scalar
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        return value
    raise TypeError(f"metric {name} is a {type(value).__name__}, not a number: {value!r}")


def read_history(run_dir: Path | str) -> list[dict[str, Any]]:
    """The metrics of a run, one dict per step, null read as NaN."""
    lines = read_jsonl(Path(run_dir) / METRICS_FILE)
    return [{name: math.nan if value is None else value for name, value in line.items()} for line in lines]
