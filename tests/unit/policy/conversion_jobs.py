"""Rank jobs that save a run's checkpoint and convert it in the same process."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from nemo_rl.policy.interfaces import TrainBatch
from tests.unit.policy.jobs import BASICS, CONFIG, build, train
from tests.unit.policy.ranks import Place


def write_checkpoint(place: Place, model: str, overrides: Sequence[str], batch: TrainBatch, folder: str) -> str:
    """Train two steps and write step_2 as a run does; its path."""
    from nemo_rl.utils.checkpoint import CheckpointManager

    worker = build(place, model, overrides)
    for _ in range(2):
        train(worker, batch)
    manager = CheckpointManager(folder, None, True, None) if place.rank == 0 else None
    if manager is not None:
        manager.begin(2)
    torch.distributed.barrier()
    worker.save(str(Path(folder) / "tmp_step_2" / "policy"))
    if manager is not None:
        manager.finalize(2, {"metrics": {}}, worker.config.model_dump(mode="json"))
    return str(Path(folder) / "step_2")


def convert(place: Place, name: str, source: str, output: str, model: str, overrides: Sequence[str] = ()) -> Any:
    """Run a function of nemo_rl.policy.conversion; its report as a dict, or the error's text."""
    from nemo_rl.config.loader import load_config
    from nemo_rl.errors import UserError
    from nemo_rl.policy import conversion

    extra = [load_config(CONFIG, [*BASICS, *overrides])] if name == "peft_to_checkpoint" else []
    try:
        return asdict(getattr(conversion, name)(Path(source), Path(output), model, *extra))
    except (conversion.ConversionError, UserError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def convert_with_damage(place: Place, source: str, output: str, model: str) -> Any:
    """checkpoint_to_peft whose writer swaps two layers' adapters."""
    from safetensors.torch import load_file, save_file

    from nemo_rl.policy.megatron.worker import MegatronPolicyWorker

    save = MegatronPolicyWorker.save_adapter

    def save_swapped(worker: MegatronPolicyWorker, folder: str) -> None:
        save(worker, folder)
        file = Path(folder) / "adapter_model.safetensors"
        tensors = load_file(file)
        swap = {".layers.0.": ".layers.1.", ".layers.1.": ".layers.0."}
        renamed = {}
        for name, tensor in tensors.items():
            part = next((p for p in swap if p in name), "")
            renamed[name.replace(part, swap[part]) if part else name] = tensor
        save_file(renamed, file)

    MegatronPolicyWorker.save_adapter = save_swapped  # type: ignore[method-assign]
    try:
        return convert(place, "checkpoint_to_peft", source, output, model)
    finally:
        MegatronPolicyWorker.save_adapter = save  # type: ignore[method-assign]
