"""Adapters on experts under expert parallelism, which Megatron-Bridge's export takes for the adapters of one rank.

Bridge numbers an expert's own weight over all ranks and its adapter within the rank, so that it does not find one by
the other; and it would merge a rank's adapter into the experts of every rank, since it merges after gathering. Here an
expert is merged on the rank that has it, before Bridge gathers it. Grouped experts, which Bridge gathers by other
code, are left to it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from megatron.bridge import AutoBridge
from megatron.bridge.models.conversion.model_bridge import HFWeightTuple
from megatron.bridge.peft.lora_merge import LoRAMerge
from megatron.core import parallel_state

_LOCAL_EXPERT = ".local_experts."
_WRAPPED = ".to_wrap"


def merges_here(task: Any) -> bool:
    """Whether this conversion task is of an adapted expert that `merged_on_their_ranks` merges."""
    name: str = task.global_param_name
    return _ranks() > 1 and _LOCAL_EXPERT in name and f"{_WRAPPED}.weight" in name


def merged_on_their_ranks(tasks: Iterable[Any], modules: Sequence[torch.nn.Module]) -> Iterator[Any]:
    """The conversion tasks, adapted experts as plain weights that are already merged: in float32, rounded once."""
    for task in tasks:
        if not merges_here(task):
            yield task
            continue
        plain = replace(task, global_param_name=task.global_param_name.replace(_WRAPPED, ""))
        if task.param_weight is not None:  # this pipeline stage has the layer
            wrapper = modules[task.vp_stage].get_submodule(task.param_name.partition(_WRAPPED)[0])
            plain = replace(plain, param_weight=_merged(wrapper))
        yield plain


@torch.no_grad()
def _merged(wrapper: Any) -> torch.Tensor:
    base, adapter = wrapper.to_wrap.weight, wrapper.adapter
    a, b = adapter.linear_in.weight.float(), adapter.linear_out.weight.float()
    merged: torch.Tensor = LoRAMerge().merge(base.float(), b, a, adapter.alpha, adapter.dim, tp_group=None)
    return merged.to(base.dtype)


class Bridge(AutoBridge):
    """Megatron-Bridge's, with the adapters of every rank's experts in the adapters that it exports."""

    def export_adapter_weights(self, model: Any, *args: Any, **options: Any) -> Iterable[HFWeightTuple]:
        exported: Iterable[HFWeightTuple] = super().export_adapter_weights(model, *args, **options)
        config = model[0].config
        whole = _ranks() == 1 or config.moe_grouped_gemm
        return exported if whole else _of_all_ranks(exported, config.num_moe_experts)


def _of_all_ranks(exported: Iterable[HFWeightTuple], experts: int) -> Iterator[HFWeightTuple]:
    """Each rank's experts under the numbers that they have among all. Collective."""
    first = parallel_state.get_expert_model_parallel_rank() * (experts // _ranks())
    own = {
        re.sub(r"\.experts\.(\d+)\.", lambda found: f".experts.{int(found[1]) + first}.", name): weight
        for name, weight in exported
    }
    everyone: list[Any] = [None] * _ranks()
    torch.distributed.all_gather_object(everyone, own, group=parallel_state.get_expert_model_parallel_group())
    for name, weight in {name: weight for part in everyone for name, weight in part.items()}.items():
        yield HFWeightTuple(name, weight)


def _ranks() -> int:
    return int(parallel_state.get_expert_model_parallel_world_size())
