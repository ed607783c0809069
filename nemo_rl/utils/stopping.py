"""Reasons to save and stop that come from outside the loop: a deadline of the job, a SIGTERM."""

import re
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

import psutil

_DURATION = re.compile(r"(\d+):([01]?\d|2[0-3]):([0-5]?\d):([0-5]?\d)")


def parse_duration(text: str) -> float:
    """Seconds of "DD:HH:MM:SS", e.g. "00:03:45:00" for three and three quarter hours."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration of the form DD:HH:MM:SS")
    days, hours, minutes, seconds = (int(part) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


class TimeoutChecker:
    """Tells when to save because one more step might not fit before the deadline.

    `must_save_by` is a duration since `start` (a time.monotonic() reading; by default the start of this process, since
    a queue counts from there); None is no deadline.
    Tell it how long each step and each save took; it expects the longest of each again, and as long as nothing was
    saved yet, that a save takes as long as a step.
    """

    def __init__(self, must_save_by: str | None, start: float | None = None) -> None:
        start = _process_start() if start is None else start
        self._deadline = None if must_save_by is None else start + parse_duration(must_save_by)
        self._longest_step = 0.0
        self._longest_save: float | None = None

    def mark_step(self, seconds: float) -> None:
        self._longest_step = max(self._longest_step, seconds)

    def mark_save(self, seconds: float) -> None:
        self._longest_save = max(self._longest_save or 0.0, seconds)

    def must_save(self) -> bool:
        """True when this is the last moment to save safely."""
        if self._deadline is None:
            return False
        save = self._longest_step if self._longest_save is None else self._longest_save
        return self._deadline - time.monotonic() <= self._longest_step + save


def _process_start() -> float:
    return time.monotonic() - (time.time() - psutil.Process().create_time())


class TerminationFlag:
    """While entered, the first SIGTERM sets the flag instead of ending the process; the loop saves and stops.

    A second SIGTERM does what SIGTERM did before. On exit the previous handler is back.
    Truthy once the signal came: `if termination: ...`.
    """

    def __init__(self, signum: signal.Signals = signal.SIGTERM) -> None:
        self._signum = signum
        self._event = threading.Event()
        self._previous: Any = None

    def __bool__(self) -> bool:
        return self._event.is_set()

    def __enter__(self) -> Self:
        self._previous = signal.signal(self._signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._event.set()
        self._restore()

    def _restore(self) -> None:
        # None: the handler was not installed from Python and cannot be put back by it
        signal.signal(self._signum, signal.SIG_DFL if self._previous is None else self._previous)
