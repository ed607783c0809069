"""Merges a PEFT LoRA folder into a Hugging Face model folder: W + (alpha / r) B A in float32, rounded once."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from nemo_rl.data.errors import DataError
from nemo_rl.policy.adapter_folder import base_changes
from nemo_rl.utils.jsonio import read_json

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_UNSUPPORTED = ("rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "fan_in_fan_out", "modules_to_save")
Update = tuple[torch.Tensor, torch.Tensor, float]
"""A [R, in], B [out, R] and the scale."""


def merge_folder(model: Path, adapter: Path, output: Path) -> int:
    """Write `model` with the adapter merged to `output`, shard by shard; returns the number of merged matrices.

    Raises DataError if the adapter uses what plain LoRA does not have, or fits no matrix of the model.
    """
    updates = read_adapter(adapter)
    shards = sorted(model.glob("*.safetensors"))
    if not shards:
        raise DataError(f"model folder {model} has no safetensors files to merge an adapter into")
    output.mkdir(parents=True)
    for file in model.iterdir():
        if file.is_file() and file not in shards:
            shutil.copyfile(file, output / file.name)
    merged: set[str] = set()
    for shard in shards:
        with safe_open(shard, framework="pt") as reader:
            metadata = reader.metadata()
            tensors = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
        for name in tensors.keys() & updates.keys():
            tensors[name] = merged_matrix(tensors[name], updates[name], name)
            merged.add(name)
        save_file(tensors, output / shard.name, metadata)
    if missing := sorted(updates.keys() - merged):
        raise DataError(
            f"adapter {adapter} has no place in model {model}: it adapts {missing[0]} and the model lacks it"
        )
    return len(merged)


def merged_matrix(weight: torch.Tensor, update: Update, name: str) -> torch.Tensor:
    """W + scale B A, computed in float32 and rounded once to the weight's dtype."""
    a, b, scale = update
    if (b.shape[0], a.shape[1]) != tuple(weight.shape):
        raise DataError(
            f"the adapter's update of {name} is {b.shape[0]} x {a.shape[1]}, the weight {tuple(weight.shape)}"
        )
    return (weight.float() + scale * (b.float() @ a.float())).to(weight.dtype)


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """What a PEFT folder says of its adapter: at least the rank and alpha."""
    file = folder / ADAPTER_CONFIG
    if not file.is_file():
        raise DataError(f"adapter folder {folder} has no {ADAPTER_CONFIG}")
    try:
        config = read_json(file)
    except ValueError as error:
        raise DataError(f"{file} is not readable as a JSON object: {error}") from error
    for key in ("r", "lora_alpha"):
        if not isinstance(config.get(key), int | float) or config[key] <= 0:
            raise DataError(f"{file} must have a positive number {key}, found {config.get(key)!r}")
    if (change := base_changes(config)) is not None:
        raise DataError(f"adapter {folder} sets {change}, which is no LoRA of the base model as it is")
    return config


def read_adapter(folder: Path) -> dict[str, Update]:
    """The updates of a PEFT folder by the name of the weight that each one changes."""
    config = read_adapter_config(folder)
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise DataError(f"adapter folder {folder} has no {ADAPTER_WEIGHTS}")
    if used := [key for key in _UNSUPPORTED if config.get(key)]:
        raise DataError(f"adapter {folder} uses {used[0]}={config[used[0]]!r}, which is not plain LoRA")
    try:
        scale, tensors = config["lora_alpha"] / config["r"], load_file(folder / ADAPTER_WEIGHTS)
    except SafetensorError as error:
        raise DataError(f"{folder / ADAPTER_WEIGHTS} is not whole: {error}") from error
    updates = {}
    for name, a in tensors.items():
        if not name.endswith(".lora_A.weight"):
            continue
        weight = name.removeprefix(_PREFIX).removesuffix(".lora_A.weight") + ".weight"
        updates[weight] = (a, tensors[name.replace(".lora_A.", ".lora_B.")], scale)
    if 2 * len(updates) != len(tensors):
        raise DataError(f"adapter {folder} holds tensors that are no pairs of lora_A and lora_B")
    return updates
