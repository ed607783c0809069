"""Grades answers in child processes that are killed, with all that they started, when they take too long."""

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from typing import Any

from nemo_rl.environments.interfaces import GradeStatus
from nemo_rl.errors import UserError

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0
"""Imports only; generous, because a cold disk under load is slow and a hang here is rare."""


class GraderStartError(UserError, RuntimeError):
    """A grader process could not be started."""


@dataclass(frozen=True)
class GradeReport:
    """One answer's grade; `reward` is NaN unless `status` is GRADED."""

    reward: float
    status: GradeStatus
    answer: str | None = None
    error: str | None = None


class GraderProcess:
    """One child and the socket to it. After a timeout or a crash it is dead and must be replaced.

    It leads a session, and so a process group, of its own: a reward function that runs code has children, which must
    end with it. Ctrl-C in the terminal does not reach it; the driver closes the pool, or dies, which ends the socket.
    """

    def __init__(self, entry_point: str) -> None:
        self.entry_point = entry_point
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nemo_rl.environments.grader_child", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=_child_environment(),
            start_new_session=True,
        )
        theirs.close()
        self._pipe.send((list(sys.path), entry_point))

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Returns once the child has imported its grader."""
        try:
            reply = self._pipe.recv() if self._pipe.poll(START_TIMEOUT_S) else ("error", "it took too long to start")
        except (EOFError, ConnectionError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # it may have more to say; its number stays taken
            self.kill()
            reply = ("error", f"it ended with exit code {self._process.returncode}")
        if reply[0] == "error":
            self.kill()
            raise GraderStartError(f"the grader process of {self.entry_point!r} did not start: {reply[1]}")

    def grade(self, response: str, metadata: Mapping[str, Any], timeout_s: float) -> tuple[GradeReport, bool]:
        """The report, and whether this process can be used again."""
        try:
            self._pipe.send((response, metadata, timeout_s))
            if not self._pipe.poll(timeout_s):
                self.kill()
                error = f"no grade within {timeout_s:g} s"
                return GradeReport(float("nan"), GradeStatus.TIMEOUT, error=error), False
            reply = self._pipe.recv()
        except (EOFError, ConnectionError):
            self.kill()
            error = f"the grader process died with exit code {self._process.returncode}"
            return GradeReport(float("nan"), GradeStatus.ERROR, error=error), False
        if reply[0] == "error":
            return GradeReport(float("nan"), GradeStatus.ERROR, error=reply[1]), True
        return GradeReport(reply[1], GradeStatus.GRADED, answer=reply[2]), True

    def kill(self) -> None:
        """Ends the process and its group, if it was not ended before."""
        if self._process.returncode is None:  # not waited for yet, so nobody else can have got its number
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        self._pipe.close()


class GraderPool:
    """Up to `num_workers` grader processes of one entry point, started when needed and replaced when they die.

    One thread waits for each process, so grades of a batch (and of batches from several threads) run side by side.
    """

    def __init__(self, entry_point: str, num_workers: int, timeout_s: float) -> None:
        self.entry_point = entry_point
        self.timeout_s = timeout_s
        # last in, first out: a light load keeps to few processes, the other places stay empty (None)
        self._places: queue.LifoQueue[GraderProcess | None] = queue.LifoQueue()
        for _ in range(num_workers - 1):
            self._places.put(None)
        self._places.put(self._start())  # a grader that cannot start says so now, not in the first step
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="grader")
        self._num_workers = num_workers

    def grade(self, batch: Iterable[tuple[str, Mapping[str, Any]]]) -> list[GradeReport]:
        """One report per (response, metadata), in order."""
        return list(self._threads.map(lambda item: self._grade_one(*item), batch))

    def close(self) -> None:
        """Ends the processes, after the grades that are under way."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for _ in range(self._num_workers):
            process = self._places.get()
            if process is not None:
                process.kill()

    def _grade_one(self, response: str, metadata: Mapping[str, Any]) -> GradeReport:
        process = self._places.get()
        try:
            process = process or self._start()
            started = time.monotonic()
            report, alive = process.grade(response, metadata, self.timeout_s)
            if not alive:
                seconds = time.monotonic() - started
                logger.warning("replacing a grader of %s after %.1f s: %s", self.entry_point, seconds, report.error)
                process = None
            return report
        finally:
            self._places.put(process)

    def _start(self) -> GraderProcess:
        process = GraderProcess(self.entry_point)
        process.wait_ready()
        return process


def _child_environment() -> dict[str, str]:
    """One thread per child: graders are many and small, and thread pools cost start-up time and memory."""
    return os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
