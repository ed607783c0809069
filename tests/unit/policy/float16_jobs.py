"""Rank jobs about float16: one training step, with and without gradients that overflow."""

from collections.abc import Sequence
from typing import Any

import torch

from nemo_rl.policy.interfaces import TrainBatch
from tests.unit.policy.jobs import Shard, build, shards, train
from tests.unit.policy.ranks import Place


def train_at_scale(
    place: Place, model: str, overrides: Sequence[str], batch: TrainBatch, scale: float
) -> dict[str, Any]:
    """One step that begins at this loss scale: its gradients without the scale, and the scale it ended at."""
    worker = build(place, model, ["policy.precision=float16", *overrides])
    optimizer = worker.optimization.optimizer
    optimizer.get_loss_scale().fill_(scale)
    first = train(worker, batch)
    reached = float(optimizer.get_loss_scale())
    gradients = {n: Shard(s.value.float() / reached, s.cut) for n, s in shards(worker, "gradient").items()}
    masters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "first": first,
        "gradients": gradients,
        "scale": reached,
        "left": [p for p in masters if p.grad is not None],
    }


def overflow_and_save(place: Place, model: str, batch: TrainBatch, folder: str) -> float:
    """The loss scale that an overflow left when the checkpoint was made."""
    worker = build(place, model, ["policy.precision=float16"])
    worker.optimization.optimizer.get_loss_scale().fill_(2.0**40)
    train(worker, batch)
    worker.save(folder)
    return float(worker.optimization.optimizer.get_loss_scale())


def loaded_scale(place: Place, model: str, folder: str) -> float:
    worker = build(place, model, ["policy.precision=float16"])
    worker.load(folder)
    return float(worker.optimization.optimizer.get_loss_scale())


def train_on_nan(place: Place, model: str, batch: TrainBatch, precision: str) -> str:
    """A loss that is not a number, which no loss scale helps."""
    worker = build(place, model, [f"policy.precision={precision}"])

    def broken(logprobs_BT: torch.Tensor, *_: Any) -> tuple[torch.Tensor, None]:
        return logprobs_BT.sum() * float("nan"), None

    try:
        worker.train([batch], broken, None)
    except FloatingPointError as error:
        return str(error)
    return "nothing was raised"
