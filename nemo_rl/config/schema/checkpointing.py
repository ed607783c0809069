"""`checkpointing`: what is saved, when, what is kept, and what a run starts from."""

from typing import Literal

from pydantic import Field

from nemo_rl.config.schema.section import Section


class CheckpointingConfig(Section):
    enabled: bool = Field(True, description="Save checkpoints, and resume from the newest one in `checkpoint_dir`.")
    checkpoint_dir: str = Field("results/grpo", min_length=1, description="Folder of the checkpoints.")
    metric_name: str | None = Field(
        "val:accuracy",
        pattern=r"^(val|train):\S+$",
        description="Metric that ranks checkpoints, `val:NAME` or `train:NAME`; null ranks by age.",
    )
    higher_is_better: bool = Field(True, description="Whether a larger metric is a better checkpoint.")
    keep_top_k: int | None = Field(
        3, ge=1, description="Checkpoints kept (the best and the newest are never deleted); null keeps all."
    )
    save_period: int = Field(10, ge=1, description="Save every so many steps.")
    save_at_end: bool = Field(True, description="Save after the last step.")
    checkpoint_must_save_by: str | None = Field(
        None,
        pattern=r"^\d{2}:([01]\d|2[0-3]):[0-5]\d:[0-5]\d$",
        description="Run time `DD:HH:MM:SS` after which the run saves and ends, for queues with a time limit.",
    )
    pretrained_checkpoint: str | None = Field(
        None,
        description="Megatron-LM or Megatron-Bridge checkpoint that gives the base weights: its folder, or one "
        "iteration of it; the folder of `policy.model_name` then only gives shape and tokenizer.",
    )
    adapter_path: str | None = Field(
        None, description="Folder of a PEFT adapter that training starts from; null for new ones."
    )
    reference: Literal["base", "start"] = Field(
        "base", description="Reference policy of the KL penalty: the base model, or the model the run started from."
    )
    fallback_to_previous: bool = Field(
        False, description="If the newest checkpoint is broken, resume from the one before it instead of stopping."
    )


class SFTCheckpointingConfig(CheckpointingConfig):
    checkpoint_dir: str = Field("results/sft", min_length=1, description="Folder of the checkpoints.")
    metric_name: str | None = Field(
        "val:val_loss",
        pattern=r"^(val|train):\S+$",
        description="Metric that ranks checkpoints, `val:NAME` or `train:NAME`; null ranks by age.",
    )
    higher_is_better: bool = Field(False, description="Whether a larger metric is a better checkpoint.")
