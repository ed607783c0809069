"""`logger`: where metrics go besides the files of the run directory, which are always written."""

from pydantic import Field

from nemo_rl.config.schema.section import Section, group


class WandbConfig(Section):
    project: str = Field("nemo-rl", min_length=1, description="Weights & Biases project.")
    name: str | None = Field(None, description="Name of the run there; null takes `logger.run_name`.")


class MLflowConfig(Section):
    experiment_name: str = Field("nemo-rl", min_length=1, description="MLflow experiment.")
    run_name: str | None = Field(None, description="Name of the run there; null takes `logger.run_name`.")
    tracking_uri: str | None = Field(None, description="MLflow server or folder; null takes MLflow's own default.")


class GPUMonitoringConfig(Section):
    collection_interval: float = Field(10.0, gt=0, description="Seconds between two samples of the monitor.")


class LoggerConfig(Section):
    log_dir: str = Field(
        "logs", min_length=1, description="Folder of the run directory with metrics, rollouts and plots."
    )
    run_name: str | None = Field(None, description="Name of the run in displays and trackers; null makes one.")
    num_val_samples_to_print: int = Field(0, ge=0, description="Validation conversations printed at each validation.")
    wandb_enabled: bool = Field(False, description="Log to Weights & Biases (WANDB_MODE=offline works).")
    tensorboard_enabled: bool = Field(False, description="Write TensorBoard event files.")
    mlflow_enabled: bool = Field(False, description="Log to MLflow.")
    monitor_gpus: bool = Field(True, description="Sample use and memory of the devices (and of the CPU) while running.")
    wandb: WandbConfig = group(WandbConfig, "Weights & Biases settings.")
    mlflow: MLflowConfig = group(MLflowConfig, "MLflow settings.")
    gpu_monitoring: GPUMonitoringConfig = group(
        GPUMonitoringConfig, "Pace of the monitor that `monitor_gpus` switches on."
    )
