"""Processor, memory and GPU use of this machine while a run goes on."""

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import psutil

Sample = dict[str, float]
Reader = Callable[[], Sample]


class SystemMonitor:
    """A thread that samples every `collection_interval` seconds; `poll()` returns the means since the last poll.

    Metrics: `system/cpu_percent` (100 is one core busy) and `system/memory_gb` of this process and its descendants,
    `system/machine_memory_percent`, and per GPU `system/gpu.N.util_percent` and `system/gpu.N.memory_gb`.
    Memory is also given as the maximum seen. An exception in the thread is raised by the next `poll()` or `stop()`.
    """

    def __init__(self, collection_interval: float, readers: list[Reader] | None = None) -> None:
        self._interval = collection_interval
        self._readers = readers
        self._samples: list[Sample] = []
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-monitor", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def poll(self) -> Sample:
        """Means (and `..._max` of memory) over the samples since the last poll; empty if there was none."""
        with self._lock:
            samples, self._samples = self._samples, []
            error, self._error = self._error, None
        if error is not None:
            raise error
        names = {name for sample in samples for name in sample}
        polled: Sample = {}
        for name in sorted(names):
            values = [sample[name] for sample in samples if name in sample]
            polled[name] = sum(values) / len(values)
            if name.endswith("memory_gb"):
                polled[f"{name}_max"] = max(values)
        return polled

    def stop(self) -> Sample:
        """Ends the thread and returns the last poll."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        return self.poll()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            with suppress(Exception):  # the exception that ends the run is the one to be seen
                self.stop()

    def _run(self) -> None:
        try:
            readers: list[Reader] = self._readers or [ProcessTreeReader(), GpuReader()]
            while not self._stop.wait(self._interval):
                sample: Sample = {}
                for reader in readers:
                    sample.update(reader())
                with self._lock:
                    self._samples.append(sample)
        except BaseException as error:
            with self._lock:
                self._error = error


class ProcessTreeReader:
    """CPU and resident memory of this process and all its descendants.

    Ray's workers count too: a local cluster's processes descend from the driver. On a cluster that was there before,
    only the driver is seen.
    """

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._root = psutil.Process()
        self()  # the first CPU reading of a process is always 0

    def __call__(self) -> Sample:
        alive = {process.pid: process for process in [self._root, *self._root.children(recursive=True)]}
        # psutil measures CPU between two readings of the same object, so known ones are kept
        self._processes = {pid: self._known(pid, process) for pid, process in alive.items()}
        cpu, memory = 0.0, 0
        for process in self._processes.values():
            with suppress(psutil.NoSuchProcess):  # ended since it was listed
                cpu += process.cpu_percent()
                memory += process.memory_info().rss
        return {
            "system/cpu_percent": cpu,
            "system/memory_gb": memory / 1e9,
            "system/machine_memory_percent": psutil.virtual_memory().percent,
        }

    def _known(self, pid: int, process: psutil.Process) -> psutil.Process:
        known = self._processes.get(pid)
        return known if known == process else process


class GpuReader:
    """Utilisation and used memory of every GPU by NVML; nothing on a machine without a driver.

    What NVML does not give is left out: a part of a GPU (MIG) has no utilisation of its own.
    """

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        self._handles = []
        try:
            pynvml.nvmlInit()
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
            return
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]

    def __call__(self) -> Sample:
        sample: Sample = {}
        for index, handle in enumerate(self._handles):
            with suppress(self._nvml.NVMLError):
                sample[f"system/gpu.{index}.util_percent"] = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu
            with suppress(self._nvml.NVMLError):
                sample[f"system/gpu.{index}.memory_gb"] = self._nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e9
        return sample
