"""`cluster`, `weight_sync` and `debug`: where things run, how weights travel, seams for looking inside."""

from typing import Literal

from pydantic import Field

from nemo_rl.config.schema.section import Section


class ClusterConfig(Section):
    gpus_per_node: int = Field(
        1, ge=1, description="Devices used on each machine. On CPU a device is one process of the policy or the engine."
    )
    num_nodes: int = Field(1, ge=1, description="Machines used.")
    accelerator: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Kind of device; `auto` takes CUDA when the driver sees a GPU, else the CPU."
    )
    ray_address: str | None = Field(
        None, description="Address of a running Ray cluster (`auto`, `host:port`); null starts a private one here."
    )
    worker_environment: Literal["auto", "driver"] = Field(
        "auto",
        description=(
            "Python environment of the workers: `auto` finds or builds the accelerator's, `driver` is this one."
        ),
    )
    cpus_per_worker: float = Field(1.0, gt=0, description="CPU cores that Ray reserves for each worker.")


class WeightSyncConfig(Section):
    bucket_bytes: int | None = Field(
        None, ge=1, description="Bytes sent at once; null chooses by device. A larger tensor is sent alone."
    )
    checksums: bool = Field(True, description="Compare a checksum of what was sent with one of what arrived.")
    verify_every: int = Field(
        0, ge=0, description="Every so many syncs compare each tensor of the engine with the trainer's; 0 means never."
    )
    measure_every: int = Field(
        1,
        ge=0,
        description="Every so many versions measure how much of the LoRA update the rounding of merged weights keeps.",
    )
    deadline_s: float = Field(600.0, gt=0, description="Seconds after which a sync that has not ended is an error.")


class DebugConfig(Section):
    rollouts_only: bool = Field(False, description="Generate, score and save rollouts; do not train.")
    train_from_rollouts: str | None = Field(
        None, description="Train from rollouts saved in this folder; no engine is started."
    )
