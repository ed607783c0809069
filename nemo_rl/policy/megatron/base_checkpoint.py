"""The frozen base from a Megatron checkpoint; the Hugging Face folder then only gives shape and tokenizer."""

import logging
from pathlib import Path
from typing import Any, cast

import torch
from megatron.core import dist_checkpointing
from torch.distributed.checkpoint.api import CheckpointException

from nemo_rl.utils.checkpoint_files import CheckpointError

logger = logging.getLogger(__name__)


def load_base(chunks: list[torch.nn.Module], folder: Path) -> list[torch.nn.Module]:
    """Fill bare model chunks with the weights of a distributed checkpoint of Megatron-LM or Megatron-Bridge, written
    at any parallel layout. Collective. Raises CheckpointError if it is damaged or of another model."""
    try:
        common = dist_checkpointing.load_common_state_dict(str(folder))
        metadata = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
        wanted = {f"model{index}": _weights(chunk, metadata) for index, chunk in enumerate(chunks)}
        state = dist_checkpointing.load(wanted, str(folder), validate_access_integrity=False)
    except (Exception, CheckpointException) as error:  # torch's CheckpointException is not an Exception
        lines = [line for line in str(error).strip().splitlines() if line] or [type(error).__name__]
        raise CheckpointError(
            f"checkpointing.pretrained_checkpoint: {folder} does not fit the model of policy.model_name: {lines[-1]}"
        ) from error
    for index, chunk in enumerate(chunks):
        chunk.load_state_dict(state[f"model{index}"], strict=False)
    logger.info("base weights from %s", folder)
    return chunks


def _weights(chunk: torch.nn.Module, metadata: Any) -> dict[str, Any]:
    """Every parameter of the chunk, described by Megatron's sharded tensors, without transformer-engine's own state."""
    sharded: dict[str, Any] = cast(Any, chunk).sharded_state_dict(metadata=metadata)
    weights = {name: sharded[name] for name in sharded if not name.endswith("_extra_state")}
    if lost := sorted(dict(chunk.named_parameters()).keys() - weights.keys() - {"output_layer.weight"}):
        raise KeyError(f"{len(lost)} parameters have no place in a checkpoint, first: {lost[0]}")
    return weights
