"""Wall-clock seconds of the named sections of one step."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

TOTAL = "total_step_time"


class Timer:
    """`with timer("generation"): ...` adds to that section; a section inside another is named `outer/inner`.

    One step runs from `reset()` (or construction) to `seconds()`. Sections may be open in several threads: nesting
    is kept per thread, the sums are shared.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = threading.local()
        self.reset()

    def reset(self) -> None:
        """Begins a new step. A section still open goes on and counts to the step in which it closes."""
        with self._lock:
            self._seconds: dict[str, float] = {}
            self._start = time.perf_counter()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        stack: list[str] = self._open.__dict__.setdefault("stack", [])
        stack.append(name)
        label = "/".join(stack)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(label, time.perf_counter() - start)
            stack.pop()

    def add(self, name: str, seconds: float) -> None:
        """Counts time that was measured elsewhere, for instance inside a worker."""
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """Seconds per section of this step so far, and `total_step_time` since its beginning."""
        with self._lock:
            return {**self._seconds, TOTAL: time.perf_counter() - self._start}

    def metrics(self, prefix: str = "timing/train") -> dict[str, float]:
        return {f"{prefix}/{name}": value for name, value in self.seconds().items()}
