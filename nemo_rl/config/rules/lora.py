"""Rules of adapters and of what a run starts from."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_rl.config.schema.master import MasterConfig

_PEFT = "policy.megatron_cfg.peft"
_HUGGING_FACE_NAMES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "linear_qkv"), "o_proj": "linear_proj",
    **dict.fromkeys(("gate_proj", "up_proj"), "linear_fc1"), "down_proj": "linear_fc2", "lm_head": "output_layer",
}  # fmt: skip


def adapters_are_well_formed(config: "MasterConfig") -> Iterator[str]:
    peft = config.policy.megatron_cfg.peft
    if peft.target_modules and peft.exclude_modules:
        yield f"{_PEFT}.exclude_modules only applies when target_modules is empty; set one of the two"
    if peft.dropout > 0:
        yield (
            f"{_PEFT}.dropout={peft.dropout} is refused: rollouts come from merged weights, which cannot "
            "reproduce dropout, "
            "so the trainer would train another policy than the one that was sampled; set 0.0"
        )
    if peft.lora_A_init_method == "zero" and peft.lora_B_init_method == "zero":
        yield f"{_PEFT}.lora_A_init_method and lora_B_init_method are both zero: neither would ever get a gradient"


def modules_have_megatrons_names(config: "MasterConfig") -> Iterator[str]:
    peft = config.policy.megatron_cfg.peft
    for key in ("target_modules", "exclude_modules"):
        for name in getattr(peft, key):
            if ours := _HUGGING_FACE_NAMES.get(name):
                yield f"{_PEFT}.{key} names {name}, which is part of Megatron's {ours}; write {ours}"


def starting_adapters_exist(config: "MasterConfig") -> Iterator[str]:
    checkpointing, peft = config.checkpointing, config.policy.megatron_cfg.peft
    if checkpointing.adapter_path is not None and not peft.enabled:
        yield f"checkpointing.adapter_path={checkpointing.adapter_path} needs {_PEFT}.enabled=true"
    if checkpointing.reference == "start" and checkpointing.adapter_path is None and peft.enabled:
        yield (
            "checkpointing.reference=start needs checkpointing.adapter_path: without starting adapters the "
            "reference is "
            "the base model (reference=base)"
        )


RULES = (adapters_are_well_formed, modules_have_megatrons_names, starting_adapters_exist)
