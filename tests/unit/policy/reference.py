"""Independent answers: Hugging Face models, and the pieces of parameters put together again by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from nemo_rl.policy.interfaces import TrainBatch
from tests.unit.policy.jobs import Shard

VOCABULARY = 128


def make_batch(rows: int = 8, longest: int = 29, seed: int = 3, vocabulary: int = VOCABULARY) -> TrainBatch:
    """Rows of very different lengths with prompts outside the loss, one row that does not count, uneven advantages."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, longest + 1, (rows,), generator=g)
    lengths[0] = longest
    column = torch.arange(longest)
    prompts = torch.randint(1, 3, (rows,), generator=g)
    inside = (column[None] >= prompts[:, None]) & (column[None] < lengths[:, None])
    tokens = torch.randint(0, vocabulary, (rows, longest), generator=g) * (column[None] < lengths[:, None])
    sample_mask = torch.ones(rows, dtype=torch.bool)
    sample_mask[2] = False
    return TrainBatch(
        token_ids_BT=tokens,
        lengths_B=lengths,
        loss_mask_BT=inside & (torch.rand(rows, longest, generator=g) > 0.2),
        sample_mask_B=sample_mask,
        advantages_B=torch.randn(rows, generator=g) * 2,
        generation_logprobs_BT=torch.zeros(rows, longest),
    )


def with_noisy_logprobs(batch: TrainBatch, live: torch.Tensor, seed: int = 5) -> TrainBatch:
    """Old and reference log-probabilities near the live ones, so that some ratios are clipped and most are not."""
    g = torch.Generator().manual_seed(seed)
    mask = batch.loss_mask_BT

    def near(scale: float) -> torch.Tensor:
        return (live + scale * torch.randn(live.shape, generator=g)) * mask

    fields: dict[str, Any] = {f: getattr(batch, f) for f in batch.__dataclass_fields__}
    fields["generation_logprobs_BT"] = near(0.1)
    fields["previous_logprobs_BT"], fields["reference_logprobs_BT"] = near(0.15), near(0.5)
    return TrainBatch(**fields)


def hf_logprobs(model: PreTrainedModel | WithWeights, batch: TrainBatch, temperature: float = 1.0) -> torch.Tensor:
    """Row by row without padding: log softmax(logits / temperature) at the tokens of the loss mask, 0 elsewhere."""
    rows = []
    for tokens, length in zip(batch.token_ids_BT, batch.lengths_B.tolist(), strict=True):
        logits = model(tokens[None, :length]).logits[0].float() / temperature
        picked = logits.log_softmax(-1)[:-1].gather(1, tokens[1:length, None])[:, 0]
        rows.append(torch.nn.functional.pad(picked, (1, tokens.shape[0] - length)))
    return torch.where(batch.loss_mask_BT, torch.stack(rows), 0.0)


def assemble(reports: Sequence[Mapping[str, Shard]]) -> dict[str, torch.Tensor]:
    """Whole parameters from all ranks' shards. Copies of the same piece must agree exactly."""
    pieces: dict[str, dict[int, torch.Tensor]] = {}
    cuts: dict[str, tuple[int, int, int] | None] = {}
    for report in reports:
        for name, (value, cut) in report.items():
            index = cut[2] if cut else 0
            held = pieces.setdefault(name, {}).setdefault(index, value)
            assert torch.equal(held, value), f"copies of {name} differ by {(held - value).abs().max():.3g}"
            cuts[name] = cut
    whole = {}
    for name, parts in pieces.items():
        cut = cuts[name]
        assert len(parts) == (cut[1] if cut else 1), name
        ordered = [parts[i] for i in sorted(parts)]
        whole[name] = _gate_then_up(ordered) if _is_gated(name) else torch.cat(ordered, dim=cut[0] if cut else 0)
    return whole


def _is_gated(name: str) -> bool:
    return "linear_fc1.adapter.linear_out" in name or name.endswith(("linear_fc1.weight", "linear_fc1.to_wrap.weight"))


def _gate_then_up(parts: list[torch.Tensor]) -> torch.Tensor:
    """Each rank's rows are its share of the gate matrix, then its share of the up matrix."""
    gates, ups = zip(*(part.chunk(2) for part in parts), strict=True)
    return torch.cat([*gates, *ups])


def whole_logprobs(reports: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Rows of all data-parallel ranks; ranks that computed the same row must agree."""
    out = torch.full_like(next(r for r in reports if r is not None), float("nan"))
    for report in reports:
        if report is not None:
            known = ~report.isnan()
            both = known & ~out.isnan()
            assert torch.equal(out[both], report[both])
            out[known] = report[known]
    assert not out.isnan().any()
    return out


def largest_difference(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> float:
    """Largest |a - b| over all tensors relative to the largest |b| of that tensor; names and shapes must agree."""
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    worst = 0.0
    for name in a:
        assert a[name].shape == b[name].shape, name
        scale = float(b[name].abs().max())
        assert scale > 0, f"{name} is zero: nothing is compared"
        worst = max(worst, float((a[name] - b[name]).abs().max()) / scale)
    return worst


def split_qkv(rows: torch.Tensor, heads: int, groups: int, head_dim: int) -> dict[str, torch.Tensor]:
    """Megatron's fused QKV rows are laid out by KV group: its query heads, its key, its value; then the next group."""
    queries = heads // groups
    parts: dict[str, list[torch.Tensor]] = {"q": [], "k": [], "v": []}
    for block in rows.split((queries + 2) * head_dim):
        for kind, piece in zip("qkv", block.split([queries * head_dim, head_dim, head_dim]), strict=True):
            parts[kind].append(piece)
    return {kind: torch.cat(pieces) for kind, pieces in parts.items()}


def merge_by_hand(
    model: PreTrainedModel, adapters: Mapping[str, torch.Tensor], scale: float
) -> dict[str, torch.Tensor]:
    """Hugging Face weights W + scale B A from Megatron-named adapters; differentiable in the adapters."""
    config, weights = model.config, dict(model.state_dict())
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    for name in [n for n in adapters if n.endswith(".linear_in.weight")]:
        a, b = adapters[name], adapters[name.replace("linear_in", "linear_out")]
        layer = f"model.layers.{name.split('.')[2]}"
        module = name.split(".adapter.")[0].rpartition(".")[2]
        if module == "linear_qkv":
            rows = split_qkv(b, config.num_attention_heads, config.num_key_value_heads, config.head_dim)
            updates = {f"{layer}.self_attn.{kind}_proj.weight": rows[kind] @ a for kind in "qkv"}
        elif module == "linear_fc1":
            gate, up = b.chunk(2)
            updates = {f"{layer}.mlp.gate_proj.weight": gate @ a, f"{layer}.mlp.up_proj.weight": up @ a}
        else:
            place = {"linear_proj": "self_attn.o_proj", "linear_fc2": "mlp.down_proj"}[module]
            updates = {f"{layer}.{place}.weight": b @ a}
        for key, update in updates.items():
            weights[key] = weights[key] + scale * update
    return weights


class WithWeights:
    """A model that is called with other weights than its own."""

    def __init__(self, model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> None:
        self.model, self.weights = model, weights

    def __call__(self, tokens: torch.Tensor) -> Any:
        return torch.func.functional_call(self.model, self.weights, (tokens,))
