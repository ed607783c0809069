"""Rank jobs around a base that comes from a Megatron checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nemo_rl.policy.interfaces import TrainBatch
from tests.unit.policy.jobs import PEFT, build, logprobs
from tests.unit.policy.ranks import Place


def write_megatron_checkpoint(place: Place, model: str, overrides: Sequence[str], folder: str) -> None:
    """What Megatron-LM and Megatron-Bridge write: the whole model as sharded tensors, in iter_0000007."""
    from megatron.core import dist_checkpointing

    from nemo_rl.policy.megatron.checkpoint import _write_in_this_process

    worker = build(place, model, [*overrides, f"{PEFT}.enabled=false"])
    iteration = Path(folder) / "iter_0000007"
    iteration.mkdir(parents=True, exist_ok=True)
    _write_in_this_process()
    torch.distributed.barrier()
    metadata = {"non_homogeneous_layers": False}
    state = {"model": worker.model.modules[0].sharded_state_dict(metadata=dict(metadata)), "iteration": 7}
    dist_checkpointing.save(state, str(iteration), content_metadata=metadata)
    torch.distributed.barrier()
    (Path(folder) / "latest_checkpointed_iteration.txt").write_text("7")


def start_from_base(
    place: Place, model: str, overrides: Sequence[str], batch: TrainBatch, folder: str
) -> dict[str, Any]:
    """Log-probabilities of the reference, which is the base alone, and the error if there was one."""
    from nemo_rl.utils.checkpoint_files import CheckpointError

    try:
        worker = build(place, model, [*overrides, f"checkpointing.pretrained_checkpoint={folder}"])
    except CheckpointError as error:
        return {"error": str(error)}
    return {"error": None, "reference": logprobs(worker, batch, reference=True)}
