"""Rank jobs around PEFT folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_rl.policy.interfaces import TrainBatch
from tests.unit.policy.jobs import build, logprobs, shards, train
from tests.unit.policy.ranks import Place


def train_and_save(
    place: Place, model: str, overrides: Sequence[str], batch: TrainBatch, steps: int, folder: str
) -> dict[str, Any]:
    worker = build(place, model, overrides)
    for _ in range(steps):
        train(worker, batch)
    worker.save_adapter(folder)
    return {"weights": shards(worker), "logprobs": logprobs(worker, batch)}


def start_from(
    place: Place, model: str, overrides: Sequence[str], batch: TrainBatch, steps: int, folder: str
) -> dict[str, Any]:
    """Start a run from the folder's adapters; the reference is what it started from."""
    settings = [*overrides, f"checkpointing.adapter_path={folder}", "checkpointing.reference=start"]
    worker = build(place, model, settings)
    report = {"weights": shards(worker), "logprobs": logprobs(worker, batch)}
    report["replies"] = [train(worker, batch) for _ in range(steps)]
    return {**report, "final": shards(worker), "reference": logprobs(worker, batch, reference=True)}


def refusal(place: Place, model: str, overrides: Sequence[str], folder: str) -> dict[str, Any]:
    """The error of loading a folder into a running policy, and whether its adapters stayed as they were."""
    from nemo_rl.policy.adapter_folder import AdapterError
    from nemo_rl.policy.megatron.peft_folder import load_peft_folder

    worker = build(place, model, overrides)
    before = shards(worker)
    message = "nothing was raised"
    try:
        load_peft_folder(worker.model, Path(folder))
    except AdapterError as error:
        message = str(error)
    after = shards(worker)
    return {"message": message, "untouched": all(before[n].value.equal(after[n].value) for n in before)}
