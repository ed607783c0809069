"""Rank jobs that save, load and train on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from nemo_rl.policy.interfaces import TrainBatch
from tests.unit.policy.jobs import build, shards, train
from tests.unit.policy.ranks import Place


def _everything(worker: Any) -> dict[str, Any]:
    """Trainable weights, and the optimizer's masters, moments and step counts by position."""
    outer = worker.optimization.optimizer
    held = {}
    for number, megatron in enumerate(getattr(outer, "chained_optimizers", [outer])):
        parameters = [p for group in megatron.optimizer.param_groups for p in group["params"]]
        for position, parameter in enumerate(parameters):
            held[number, position, "master"] = parameter.detach().clone()
            for key, value in megatron.optimizer.state[parameter].items():
                held[number, position, key] = torch.as_tensor(value).clone()
    return {"weights": shards(worker), "optimizer": held, "random": torch.rand(3)}


def uninterrupted(
    place: Place, model: str, overrides: Sequence[str], batch: TrainBatch, steps: int, save_at: int, folder: str
) -> dict[str, Any]:
    """Train `steps` steps, saving after `save_at`; what was saved and how it ended."""
    worker = build(place, model, overrides)
    replies, saved = [], None
    if save_at == 0:
        worker.save(folder)
    for step in range(steps):
        replies.append(train(worker, batch))
        if step + 1 == save_at:
            worker.save(folder)
            saved = shards(worker)
    children = [child.name() for child in psutil.Process().children()]
    return {"saved": saved, "replies": replies, "children": children, **_everything(worker)}


def resumed(
    place: Place, model: str, overrides: Sequence[str], batch: TrainBatch, steps: int, folder: str
) -> dict[str, Any]:
    """Load and train `steps` more; what was loaded and how it ended."""
    worker = build(place, model, overrides)
    worker.load(folder)
    loaded = shards(worker)
    return {"loaded": loaded, "replies": [train(worker, batch) for _ in range(steps)], **_everything(worker)}


def refused(place: Place, model: str, overrides: Sequence[str], folder: str) -> str:
    from nemo_rl.utils.checkpoint_files import CheckpointError

    worker = build(place, model, overrides)
    try:
        worker.load(folder)
    except CheckpointError as error:
        return str(error)
    return "nothing was raised"


def cut_in_half(folder: Path, suffix: str) -> Path:
    """Truncates the largest file of a kind."""
    file = max(folder.glob(f"*{suffix}"), key=lambda f: f.stat().st_size)
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)
    return file


def while_away(place: Place, model: str, overrides: Sequence[str], batch: TrainBatch, folder: str) -> list[str]:
    """What the policy answers when its devices are the engine's; then it comes back and saves."""
    worker = build(place, model, overrides)
    worker.offload("before_sync")
    worker.base_fingerprint()  # the weights are there until the sync is over
    worker.offload("after_sync")
    answers = []
    for ask in (
        lambda: worker.save(folder),
        lambda: worker.save_adapter(folder),
        lambda: worker.logprobs([batch]),
        lambda: train(worker, batch),
        lambda: worker.begin_export(1, 1 << 20, True),
    ):
        try:
            ask()
        except RuntimeError as error:
            answers.append(str(error))
    worker.onload()
    worker.save(folder)
    return answers
