"""Rank jobs about adapters: scale, merging, refusals, reference, recompute, full-parameter training."""

from collections.abc import Sequence
from typing import Any

import torch

from nemo_rl.policy.interfaces import TrainBatch
from tests.unit.policy.jobs import build, exported, logprobs, shards, train
from tests.unit.policy.ranks import Place


def _wrapper(worker: Any, layer: int, linear: str) -> Any:
    block = worker.model.modules[0].decoder.layers[layer]
    return getattr(block.self_attention if linear in ("linear_qkv", "linear_proj") else block.mlp, linear)


def adapter_of_ones(place: Place, model: str, overrides: Sequence[str]) -> dict[str, Any]:
    """linear_proj of layer 0 with W = 0 and A, B all ones: its output for ones, and its exported weight."""
    worker = build(place, model, overrides)
    wrapper = _wrapper(worker, 0, "linear_proj")
    with torch.no_grad():
        wrapper.to_wrap.weight.zero_()
        wrapper.adapter.linear_in.weight.fill_(1)
        wrapper.adapter.linear_out.weight.fill_(1)
        columns = wrapper.to_wrap.weight.shape[1]
        output, _ = wrapper(torch.ones(2, 1, columns))
    return {"output": output, "weight": exported(worker)["model.layers.0.self_attn.o_proj.weight"]}


def merged_on_a_grid(place: Place, model: str, deltas: Sequence[float]) -> dict[str, Any]:
    """bfloat16: every weight of linear_proj of layer 0 is 1, column j gets deltas[j]; no other adapter acts."""
    worker = build(place, model, ["policy.precision=bfloat16"])
    with torch.no_grad():
        for name, parameter in worker.model.trainable().items():
            if "linear_out" in name:
                parameter.zero_()
        wrapper = _wrapper(worker, 0, "linear_proj")
        wrapper.to_wrap.weight.fill_(1)
        wrapper.adapter.linear_in.weight.zero_()
        wrapper.adapter.linear_in.weight[0, : len(deltas)] = torch.tensor(deltas).bfloat16()
        wrapper.adapter.linear_out.weight[:, 0] = wrapper.adapter.dim / wrapper.adapter.alpha
    return {
        "weight": exported(worker)["model.layers.0.self_attn.o_proj.weight"],
        "retention": worker.merge_retention(),
    }


def gradients(place: Place, model: str, overrides: Sequence[str], batch: TrainBatch) -> dict[str, Any]:
    worker = build(place, model, overrides)
    return {"start": shards(worker), "first": train(worker, batch), "gradients": shards(worker, "gradient")}


def train_and_export(place: Place, model: str, overrides: Sequence[str], batch: TrainBatch) -> dict[str, Any]:
    """One step; the export, and reference log-probabilities before and after."""
    worker = build(place, model, overrides)
    before = logprobs(worker, batch, reference=True)
    first = train(worker, batch)
    weights = exported(worker)
    return {
        "first": first,
        "export": weights if place.rank == 0 else None,
        "reference": (before, logprobs(worker, batch, reference=True)),
        "live": logprobs(worker, batch),
    }


def reference_of_the_start(place: Place, model: str, overrides: Sequence[str], batch: TrainBatch) -> dict[str, Any]:
    """Log-probabilities at the start; after training: live, reference, and live again; adapters before and after."""
    from nemo_rl.policy.megatron.reference import ReferenceKind, ReferencePolicy

    worker = build(place, model, overrides)
    worker.reference = ReferencePolicy(worker.model, ReferenceKind.START)
    start = logprobs(worker, batch)
    train(worker, batch)
    held, live = shards(worker), logprobs(worker, batch)
    reference = logprobs(worker, batch, reference=True)
    return {"start": start, "live": live, "reference": reference, "again": logprobs(worker, batch),
            "held": held, "kept": shards(worker)}  # fmt: skip


def many_exports(place: Place, model: str, count: int) -> dict[str, Any]:
    worker = build(place, model, [])
    before = worker.base_fingerprint()
    first = exported(worker)
    for _ in range(count):
        for _ in exported(worker):
            pass
    same = all(torch.equal(tensor, first[name]) for name, tensor in exported(worker).items())
    after = worker.base_fingerprint()
    with torch.no_grad():  # the fingerprint sees the smallest change of one number
        weight = _wrapper(worker, 3, "linear_fc2").to_wrap.weight
        weight[-1, -1] = torch.nextafter(weight[-1, -1], torch.tensor(float("inf")))
    return {"before": before, "after": after, "same": same, "tampered": worker.base_fingerprint()}


def lost_adapter(place: Place, model: str) -> str:
    """The error when the exporter has no task for one adapter."""
    from nemo_rl.policy.adapter_folder import AdapterError

    worker = build(place, model, [])
    bridge = worker.model.bridge

    class Forgetful:
        _model_bridge = bridge._model_bridge

        def get_conversion_tasks(self, modules: Any) -> list[Any]:
            tasks = bridge.get_conversion_tasks(modules)
            return [t for t in tasks if "layers.2.mlp.linear_fc2" not in t.global_param_name]

    worker.model.adapters.check_exportable(bridge)
    try:
        worker.model.adapters.check_exportable(Forgetful())
    except AdapterError as error:
        return str(error)
    return "nothing was raised"


def padded_vocabulary_logprobs(
    place: Place, logits: torch.Tensor, tokens: torch.Tensor, vocab: int, temperature: float
) -> Any:
    """next_token_logprobs of logits [rows, n, V], cut over tensor-parallel ranks; and the gradient of their sum."""
    from megatron.core import parallel_state

    from nemo_rl.policy.megatron.distributed import join_training_ranks
    from nemo_rl.policy.megatron.vocab_logprobs import next_token_logprobs

    join_training_ranks(place.rendezvous, place.rank, place.world, None)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=place.world)
    piece = logits.chunk(place.world, dim=-1)[place.rank].clone().requires_grad_()
    out = next_token_logprobs(piece, tokens, temperature, vocab)
    out.sum().backward()
    return out.detach(), piece.grad


def frozen_head(
    place: Place,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    tokens: torch.Tensor,
    factors: torch.Tensor,
    vocab: int,
    temperature: float,
    chunk: int | None,
) -> Any:
    """FrozenHeadLogprobs with the vocabulary cut over tensor-parallel ranks, and the gradient of their weighted sum."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region

    from nemo_rl.policy.megatron.distributed import join_training_ranks
    from nemo_rl.policy.megatron.frozen_head import FrozenHeadLogprobs

    join_training_ranks(place.rendezvous, place.rank, place.world, None)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=place.world)
    hidden = hidden.clone().requires_grad_()
    piece = weight.chunk(place.world)[place.rank]
    shared = copy_to_tensor_model_parallel_region(hidden)
    out = FrozenHeadLogprobs.apply(shared, piece, tokens, temperature, vocab, chunk)
    (out * factors).sum().backward()
    with torch.no_grad():
        assert torch.equal(FrozenHeadLogprobs.apply(hidden, piece, tokens, temperature, vocab, chunk), out)
    return out.detach(), hidden.grad
