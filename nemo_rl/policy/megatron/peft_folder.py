"""Adapters as PEFT folders (adapter_config.json, adapter_model.safetensors), written and read at any parallel layout.

Megatron fuses q, k, v into one linear and gate, up into another, with one A for all of its parts; PEFT has a linear
and an A each. Writing repeats A. Reading needs equal A's: others cannot be represented, and are refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from nemo_rl.policy.adapter_folder import WEIGHTS_FILE, AdapterError, check_adapter_folder
from nemo_rl.policy.megatron.model import PolicyModel
from nemo_rl.policy.megatron.shards import own_piece, whole_shape

_PREFIX = "base_model.model."


def save_peft_folder(model: PolicyModel, folder: Path, base_model_name: str) -> None:
    """Write the adapters so that `peft` and vLLM open them on the Hugging Face base. Collective; rank 0 writes."""
    if model.adapters is None:
        raise AdapterError("there are no adapters to save: policy.megatron_cfg.peft.enabled is false")
    model.bridge.save_hf_adapter(
        model.modules, folder, model.adapters.lora, base_model_name_or_path=base_model_name, show_progress=False
    )


def load_peft_folder(model: PolicyModel, folder: Path) -> None:
    """Overwrite all adapters with those of `folder`. Collective.

    Raises AdapterError, on every rank alike and before anything is written, unless rank, alpha, the adapted modules
    and their shapes are those of this model.
    """
    if model.adapters is None:
        raise AdapterError(f"{folder} has adapters, but policy.megatron_cfg.peft.enabled is false")
    lora = model.adapters.lora
    check_adapter_folder(folder, lora.dim, lora.alpha)
    tensors = load_file(folder / WEIGHTS_FILE)  # by the names that they have in the file
    wholes: dict[str, torch.Tensor] = {}
    used: set[str] = set()
    problem: str | None = None
    try:
        for name, parameter in model.adapters.parameters.items():
            names = _peft_names(model, name)
            wholes[name] = _fuse(names, tensors, name, model.config)
            used.update(names.values())
            _check_shape(wholes[name], whole_shape(parameter, model.adapters.cut_of(name)), names)
    except AdapterError as error:
        problem = str(error)
    reports: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(reports, (problem, used))
    if problems := [text for text, _ in reports if text is not None]:
        raise AdapterError(f"{folder} cannot be loaded: {problems[0]}")
    if extra := sorted(tensors.keys() - set().union(*(names for _, names in reports))):
        raise AdapterError(
            f"{folder} cannot be loaded: it adapts {len(extra)} tensors that this run does not, first {extra[0]}; "
            "set policy.megatron_cfg.peft.target_modules to what it was trained with"
        )
    with torch.no_grad():
        for name, parameter in model.adapters.parameters.items():
            parameter.copy_(own_piece(wholes[name], model.adapters.cut_of(name)))


def _peft_names(model: PolicyModel, name: str) -> dict[str, str]:
    """The file's name of every part that an adapter matrix is fused of: {"q": ..., "k": ..., "v": ...}, {"gate": ...,
    "up": ...}, or {"": ...}."""
    base, _, matrix = name.partition(".adapter.")
    mapping = model.bridge._model_bridge.mapping_registry().megatron_to_hf_lookup(f"{base}.weight")
    if mapping is None or ".experts.linear_" in base:
        raise AdapterError(f"there is no one-to-one PEFT name for the adapter of {base}")
    parts = mapping.hf_param if isinstance(mapping.hf_param, dict) else {"": mapping.hf_param}
    suffix = ".lora_A.weight" if matrix.startswith("linear_in") else ".lora_B.weight"
    return {part: _PREFIX + hf.removesuffix(".weight") + suffix for part, hf in parts.items()}


def _fuse(names: Mapping[str, str], tensors: Mapping[str, torch.Tensor], name: str, config: Any) -> torch.Tensor:
    if missing := [file_name for file_name in names.values() if file_name not in tensors]:
        raise AdapterError(
            f"it has no {missing[0]}; if that module was not trained, take it out of "
            "policy.megatron_cfg.peft.target_modules"
        )
    parts = {part: tensors[file_name] for part, file_name in names.items()}
    if ".linear_in." in name:
        first, *others = parts.values()
        if not all(torch.equal(first, other) for other in others):
            raise AdapterError(
                f"the A matrices of {', '.join(names.values())} differ, and Megatron's fused linear has one A for all "
                "of them: only adapters that were trained with fused linears, as here, can be loaded"
            )
        return first
    if parts.keys() == {"q", "k", "v"}:
        return fuse_qkv(parts["q"], parts["k"], parts["v"], config.num_query_groups)
    return torch.cat([parts["gate"], parts["up"]]) if parts.keys() == {"gate", "up"} else next(iter(parts.values()))


def fuse_qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, groups: int) -> torch.Tensor:
    """Rows [q; k; v] -> Megatron's order: each KV group's query heads, its key head, its value head."""
    blocks = [matrix.reshape(groups, -1, matrix.shape[-1]) for matrix in (q, k, v)]
    return torch.cat(blocks, dim=1).reshape(-1, q.shape[-1])


def _check_shape(whole: torch.Tensor, wanted: list[int], names: Mapping[str, str]) -> None:
    if list(whole.shape) != wanted:
        raise AdapterError(
            f"{next(iter(names.values()))} gives a matrix of {list(whole.shape)} where the model needs {wanted}: the "
            "adapter belongs to another base model"
        )
