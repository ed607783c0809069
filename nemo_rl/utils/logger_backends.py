"""Trackers besides the local files: TensorBoard, Weights & Biases, MLflow. Each is imported only when switched on."""

import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nemo_rl.errors import UserError, first_line


class TrackerError(UserError):
    """A tracker that is switched on but not installed, or that refuses to begin."""


@dataclass(frozen=True)
class WandbSettings:
    """WANDB_MODE (online, offline, disabled) and WANDB_API_KEY are read from the environment by wandb itself."""

    project: str
    name: str


@dataclass(frozen=True)
class MlflowSettings:
    """`tracking_uri` None keeps the runs in the run directory."""

    experiment_name: str
    run_name: str
    tracking_uri: str | None = None


@dataclass(frozen=True)
class BackendSettings:
    """Which trackers are on; None or False is off."""

    tensorboard: bool = False
    wandb: WandbSettings | None = None
    mlflow: MlflowSettings | None = None


class Backend(Protocol):
    """Receives what the local files receive."""

    def log_config(self, config: Mapping[str, Any]) -> None: ...

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self, failed: bool) -> None: ...


def check_backends(settings: BackendSettings) -> None:
    """TrackerError, naming switch and remedy, if a tracker that is on is not installed. Imports none of them."""
    wanted = {
        "logger.tensorboard_enabled": ("tensorboard", settings.tensorboard, "uv sync"),
        "logger.wandb_enabled": ("wandb", settings.wandb, "uv sync"),
        "logger.mlflow_enabled": ("mlflow", settings.mlflow, "uv sync --extra mlflow"),
    }
    for switch, (module, enabled, remedy) in wanted.items():
        if enabled and importlib.util.find_spec(module) is None:
            raise TrackerError(f"{switch} is true but the package {module} is not installed: run `{remedy}`")


def make_backends(settings: BackendSettings, run_dir: Path, resume_step: int | None) -> list[Backend]:
    check_backends(settings)
    backends: list[Backend] = []
    if settings.tensorboard:
        backends.append(TensorBoardBackend(run_dir / "tensorboard", resume_step))
    if settings.wandb is not None:
        backends.append(WandbBackend(settings.wandb, run_dir))
    if settings.mlflow is not None:
        backends.append(MlflowBackend(settings.mlflow, run_dir))
    return backends


class TensorBoardBackend:
    """Event files under `directory`; after a resume, points beyond the resumed step are hidden."""

    def __init__(self, directory: Path, resume_step: int | None) -> None:
        tensorboard = importlib.import_module("torch.utils.tensorboard")
        purge_step = None if resume_step is None else resume_step + 1
        self._writer = tensorboard.SummaryWriter(str(directory), purge_step=purge_step)

    def log_config(self, config: Mapping[str, Any]) -> None:
        yaml = importlib.import_module("yaml")
        # four leading spaces make it a code block in TensorBoard's markdown
        text = yaml.safe_dump(dict(config), sort_keys=False)
        self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, failed: bool) -> None:
        self._writer.close()


class WandbBackend:
    """One wandb run whose files lie in the run directory, also when offline."""

    def __init__(self, settings: WandbSettings, run_dir: Path) -> None:
        wandb = importlib.import_module("wandb")
        try:
            self._run = wandb.init(project=settings.project, name=settings.name, dir=str(run_dir))
        except wandb.errors.Error as error:
            raise TrackerError(
                f"logger.wandb_enabled is true but Weights & Biases refuses to begin: {first_line(error)}; set "
                "WANDB_API_KEY, or WANDB_MODE=offline"
            ) from error

    def log_config(self, config: Mapping[str, Any]) -> None:
        self._run.config.update(dict(config))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class MlflowBackend:
    """One MLflow run; nested configuration keys become dotted parameter names."""

    def __init__(self, settings: MlflowSettings, run_dir: Path) -> None:
        self._mlflow = importlib.import_module("mlflow")
        uri = settings.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            # MLflow would have a database instead of files, but its slim package comes without the means to make one
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (run_dir / "mlruns").resolve().as_uri()
        try:
            self._mlflow.set_tracking_uri(uri)
            self._mlflow.set_experiment(settings.experiment_name)
            self._mlflow.start_run(run_name=settings.run_name)
        except self._mlflow.exceptions.MlflowException as error:
            raise TrackerError(
                f"logger.mlflow_enabled is true but MLflow at {uri} refuses to begin: {first_line(error)}; check "
                "logger.mlflow.tracking_uri"
            ) from error

    def log_config(self, config: Mapping[str, Any]) -> None:
        # MLflow refuses parameters longer than 6,000 characters
        self._mlflow.log_params({key: str(value)[:6000] for key, value in flatten(config).items()})

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        # MLflow refuses names with an @, as in pass@4
        self._mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in metrics.items()}, step=step)

    def close(self, failed: bool) -> None:
        self._mlflow.end_run("FAILED" if failed else "FINISHED")


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
