import threading
import time
from types import SimpleNamespace

import pynvml
import pytest

from nemo_rl.utils.monitor import GpuReader, SystemMonitor


def wait_for(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_sees_this_process() -> None:
    with SystemMonitor(collection_interval=0.01) as monitor:
        wait_for(lambda: monitor._samples)
        polled = monitor.poll()
    assert 0.01 < polled["system/memory_gb"] <= polled["system/memory_gb_max"] < 1000
    assert polled["system/cpu_percent"] >= 0
    assert 0 < polled["system/machine_memory_percent"] <= 100


def test_poll_gives_means_since_the_last_poll() -> None:
    values = iter([1.0, 2.0, 6.0])
    done = threading.Event()

    def reader() -> dict[str, float]:
        value = next(values, None)
        if value is None:
            done.set()
            return {}
        return {"system/memory_gb": value}

    monitor = SystemMonitor(0.001, [reader]).start()
    assert done.wait(10)
    assert monitor.stop() == {"system/memory_gb": 3.0, "system/memory_gb_max": 6.0}
    assert monitor.poll() == {}


def test_its_failure_is_raised_at_the_next_poll() -> None:
    def reader() -> dict[str, float]:
        raise OSError("sensor gone")

    monitor = SystemMonitor(0.001, [reader]).start()
    wait_for(lambda: not monitor._thread.is_alive())
    with pytest.raises(OSError, match="sensor gone"):
        monitor.poll()
    assert monitor.stop() == {}


def test_what_a_gpu_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NVML does for a part of a GPU (MIG)."""

    def refuse(_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name, value in {
        "nvmlInit": lambda: None, "nvmlDeviceGetCount": lambda: 1, "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetUtilizationRates": refuse, "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=2e9),
    }.items():  # fmt: skip
        monkeypatch.setattr(pynvml, name, value)
    assert GpuReader()() == {"system/gpu.0.memory_gb": 2.0}


def test_the_thread_is_gone_after_stop() -> None:
    monitor = SystemMonitor(collection_interval=60).start()
    start = time.monotonic()
    monitor.stop()
    assert not monitor._thread.is_alive()
    assert time.monotonic() - start < 10


def test_the_exception_that_ends_the_run_is_the_one_seen() -> None:
    def reader() -> dict[str, float]:
        raise OSError("sensor gone")

    def run() -> None:
        with SystemMonitor(0.001, [reader]) as monitor:
            wait_for(lambda: not monitor._thread.is_alive())
            raise RuntimeError("worker died")

    with pytest.raises(RuntimeError, match="worker died"):
        run()
