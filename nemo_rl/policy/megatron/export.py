"""The source of weights for the engine: merged Hugging Face tensors of the live policy, W + (alpha / dim) B A."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from megatron.bridge.peft.adapter_wrapper import AdapterWrapper
from megatron.bridge.peft.lora_merge import LoRAMerge
from megatron.core import parallel_state

from nemo_rl.policy.megatron.experts import merged_on_their_ranks
from nemo_rl.policy.megatron.model import PolicyModel


def merged_weights(model: PolicyModel) -> Iterator[tuple[str, torch.Tensor]]:
    """(Hugging Face name, full tensor) on every rank, in a fixed order. Collective over all training ranks.

    Megatron-Bridge gathers base and adapters, merges in float32 into a new tensor and rounds once; the live base is
    only read. Rows that pad the vocabulary are not exported.
    """
    if model.export_tasks is None:
        model.export_tasks = model.bridge.get_conversion_tasks(model.modules)
    padded = {
        task.mapping.hf_param
        for task in model.export_tasks
        if task.global_param_name.endswith(("word_embeddings.weight", "output_layer.weight"))
    } | {"lm_head.weight"}
    tasks = merged_on_their_ranks(model.export_tasks, model.modules)
    exported = model.bridge.export_hf_weights(model.modules, cpu=False, show_progress=False, conversion_tasks=tasks)
    for name, tensor in exported:
        yield name, tensor[: model.vocab_size] if name in padded else tensor


def save_merged_folder(model: PolicyModel, folder: Path) -> None:
    """Write a Hugging Face folder of the merged model. Collective; rank 0 writes."""
    pretrained = model.bridge.hf_pretrained
    if torch.distributed.get_rank() == 0:
        pretrained.save_artifacts(folder)
    torch.distributed.barrier()
    pretrained.state.source.save_generator(((name, tensor.cpu()) for name, tensor in merged_weights(model)), folder)


def base_fingerprint(model: PolicyModel) -> str:
    """SHA-256 over this rank's frozen parameters: must be the same before and after anything we do."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.frozen().items()):
        digest.update(name.encode())
        digest.update(parameter.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def merge_retention(model: PolicyModel) -> dict[str, float]:
    """How much of the LoRA update survives rounding to the serving dtype, over all adapted matrices.

    `delta_retained` = <kept, delta> / <delta, delta> with delta the float32 update and kept = round(W + delta) - W;
    `weights_moved` = share of adapted weights whose rounded value differs from W. Collective over TP x PP.
    """
    device = next(iter(model.trainable().values())).device
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    for module in model.modules:
        for wrapper in module.modules():
            if isinstance(wrapper, AdapterWrapper) and getattr(wrapper.to_wrap, "weight", None) is not None:
                sums += _retention_sums(wrapper)
    torch.distributed.all_reduce(sums, group=parallel_state.get_model_parallel_group())
    projection, norm, moved, count = sums.tolist()
    return {"delta_retained": projection / norm if norm else 1.0, "weights_moved": moved / count if count else 0.0}


def _retention_sums(wrapper: AdapterWrapper) -> torch.Tensor:
    base, adapter = wrapper.to_wrap.weight, wrapper.adapter
    wide = base.float()
    merged = LoRAMerge().merge(
        wide,
        adapter.linear_out.weight.float(),
        adapter.linear_in.weight.float(),
        adapter.alpha,
        adapter.dim,
        tp_group=parallel_state.get_tensor_model_parallel_group(),
    )
    delta = merged - wide
    kept = merged.to(base.dtype).float() - wide
    return torch.stack(
        [(kept * delta).sum(), delta.square().sum(), (kept != 0).sum(), torch.tensor(kept.numel(), device=kept.device)]
    ).double()
