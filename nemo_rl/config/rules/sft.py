"""Rules of supervised fine-tuning."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nemo_rl.config.layout import ParallelLayout

if TYPE_CHECKING:
    from nemo_rl.config.schema.master import SFTMasterConfig

_TRAIN_METRICS = ("loss", "grad_norm")


def axes_divide_the_devices(config: "SFTMasterConfig") -> Iterator[str]:
    try:
        ParallelLayout.from_config(config)
    except ValueError as error:
        yield str(error)


def conversations_fit(config: "SFTMasterConfig") -> Iterator[str]:
    length, total = config.data.max_input_seq_length, config.policy.max_total_sequence_length
    if length > total:
        yield f"data.max_input_seq_length={length} must be at most policy.max_total_sequence_length={total}"


def validation_has_data(config: "SFTMasterConfig") -> Iterator[str]:
    if _validates(config) and config.data.validation is None and not config.data.held_out:
        yield (
            "sft.val_period, val_at_start or val_at_end asks for validation, but data.validation is null and "
            "data.train.split_validation_size is 0; set one of them, or val_period=0 and val_at_start=false"
        )


def _validates(config: "SFTMasterConfig") -> bool:
    return config.sft.val_period > 0 or config.sft.val_at_start or config.sft.val_at_end


def checkpoint_metric_is_produced(config: "SFTMasterConfig") -> Iterator[str]:
    checkpointing = config.checkpointing
    if not checkpointing.enabled or checkpointing.metric_name is None:
        return
    kind, name = checkpointing.metric_name.split(":", 1)
    found = f"checkpointing.metric_name={checkpointing.metric_name}"
    if kind == "val" and not (config.sft.val_period > 0 or config.sft.val_at_end):
        yield f"{found} is never produced: sft.val_period is off and val_at_end is false; use train:loss or null"
    known = ("val_loss",) if kind == "val" else _TRAIN_METRICS
    if name not in known:
        yield f"{found} is not a metric that SFT produces; known are {', '.join(f'{kind}:{n}' for n in known)}"


def reference_is_not_set(config: "SFTMasterConfig") -> Iterator[str]:
    if config.checkpointing.reference != "base":
        yield "checkpointing.reference has no effect in SFT, which has no reference policy; leave it at base"


RULES = (
    axes_divide_the_devices,
    conversations_fit,
    validation_has_data,
    checkpoint_metric_is_produced,
    reference_is_not_set,
)
