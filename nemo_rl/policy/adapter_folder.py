"""What a PEFT folder says of its adapter, checked against the configuration; imports nothing of Megatron."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_rl.errors import UserError

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_PLAIN = {"use_rslora": False, "use_dora": False, "bias": "none", "fan_in_fan_out": False, "modules_to_save": None}


_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq")
"""Initialisations with which PEFT takes the adapter's first product off the base when it opens the folder."""


def base_changes(config: Mapping[str, Any]) -> str | None:
    """The entry of an adapter_config.json that makes it more than W + scale B A of the base as it is, if any."""
    first = config.get("init_lora_weights")
    if isinstance(first, str) and first.startswith(_CHANGE_THE_BASE):
        return f"init_lora_weights={first}"
    tokens = config.get("alora_invocation_tokens")
    return None if tokens is None else f"alora_invocation_tokens={tokens}"


class AdapterError(UserError, ValueError):
    """An adapter was asked for that could not be trained, exported or loaded."""


def check_adapter_folder(folder: Path, dim: int, alpha: float) -> None:
    """AdapterError unless `folder` holds a plain LoRA adapter of this rank and alpha, the same for all modules."""
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / file).is_file():
            raise AdapterError(f"{folder} is not a PEFT adapter: it has no {file}")
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise AdapterError(f"{folder / CONFIG_FILE} is not JSON: {error}") from error
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{folder} holds a PEFT adapter of type {config.get('peft_type')}; only LORA can be loaded")
    for key, ours, section in (("r", dim, "dim"), ("lora_alpha", alpha, "alpha")):
        if config.get(key) != ours:
            raise AdapterError(
                f"{folder} has {key}={config.get(key)}, but policy.megatron_cfg.peft.{section}={ours}; make them equal"
            )
    for key in ("rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise AdapterError(f"{folder} sets {key}={config[key]}; here all modules share one rank and one alpha")
    if (change := base_changes(config)) is not None:
        raise AdapterError(f"{folder} sets {change}, which is no LoRA of the base model as it is")
    for key, plain in _PLAIN.items():
        if config.get(key, plain) != plain:
            raise AdapterError(f"{folder} sets {key}={config[key]}, which Megatron's LoRA cannot represent")
