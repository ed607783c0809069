"""From rows of tokens to log-probabilities through Megatron's pipeline schedules, padded or packed, at any layout.

Both row forms share one picture: the tokens of a micro-batch lie in one flat line of N slots, row b starting at slot
`starts[b]`. Padded rows are the special case of equal spacing. Context parallelism gives each rank the zig-zag share of
every row; the shares are put back into the flat line before anything is computed from log-probabilities, so losses
and metrics see whole rows [B, T] whatever the layout.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func

from nemo_rl.data.packed_layout import packed_layout, zigzag_indices
from nemo_rl.policy.interfaces import TrainBatch
from nemo_rl.policy.megatron.output import OutputRequest, logprob_processor
from nemo_rl.policy.megatron.vocab_logprobs import SumOverRanks


@dataclass(frozen=True)
class RowLayout:
    """How rows become model inputs: `packed` into one thd line or padded, what each row's length and, packed, the
    whole line's length must be divisible by; the temperature that log-probabilities are taken at, and how many
    positions' logits are held at once (None: all)."""

    packed: bool
    divisible_by: int
    line_divisible_by: int
    temperature: float
    logits_chunk: int | None = None


@dataclass(frozen=True)
class ModelInput:
    """One micro-batch on this context rank. `line_index` says which slots of the flat line its tokens are, `needed`
    at which positions the next token's log-probability is asked for."""

    token_ids: torch.Tensor
    position_ids: torch.Tensor
    next_token_ids: torch.Tensor
    needed: torch.Tensor
    packed: PackedSeqParams | None
    line_index: torch.Tensor
    line_length: int
    starts: list[int]


def _share(length: int, cp_size: int, cp_rank: int) -> torch.Tensor:
    return torch.arange(length) if cp_size == 1 else zigzag_indices(length, cp_size, cp_rank)


def build_model_input(batch: TrainBatch, layout: RowLayout, device: torch.device) -> ModelInput:
    """Lay the rows of a micro-batch out as this rank's model input."""
    cp_size = parallel_state.get_context_parallel_world_size()
    cp_rank = parallel_state.get_context_parallel_rank()
    lengths = batch.lengths_B.tolist()
    multiple = math.lcm(layout.divisible_by, 2 * cp_size if cp_size > 1 else 1)
    if layout.packed:
        spans = packed_layout(lengths, multiple, layout.line_divisible_by).cu_seqlens_padded.diff().tolist()
    else:
        spans = [-(-max(lengths) // multiple) * multiple] * len(lengths)
    starts = [sum(spans[:i]) for i in range(len(spans))]
    total = sum(spans)
    line = torch.zeros(total, dtype=torch.long)
    counts = torch.zeros(total, dtype=torch.bool)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        line[start : start + length] = batch.token_ids_BT[row, :length]
        counts[start + 1 : start + length] = batch.loss_mask_BT[row, 1:length]
    positions = torch.cat([torch.arange(span) for span in spans])
    index = torch.cat([start + _share(span, cp_size, cp_rank) for start, span in zip(starts, spans, strict=True)])
    rows = 1 if layout.packed else len(spans)
    bounds = torch.tensor([*starts, total], dtype=torch.int32, device=device)
    params = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        max_seqlen_q=max(spans),
        max_seqlen_kv=max(spans),
    )
    return ModelInput(
        token_ids=line[index].view(rows, -1).to(device),
        position_ids=positions[index].view(rows, -1).to(device),
        next_token_ids=line.roll(-1)[index].view(rows, -1).to(device),
        needed=counts.roll(-1)[index].view(rows, -1).to(device),
        packed=params if layout.packed else None,
        line_index=index.to(device),
        line_length=total,
        starts=starts,
    )


def logprobs_of_rows(share: torch.Tensor, inputs: ModelInput, batch: TrainBatch) -> torch.Tensor:
    """This rank's next-token log-probabilities [rows, n] -> those of every row's tokens [B, T], differentiable.

    0 at position 0, in padding and where `loss_mask_BT` is False. Whole rows come back on every tensor and context
    rank.
    """
    share = share.reshape(-1)
    line = torch.zeros(inputs.line_length, dtype=share.dtype, device=share.device).index_copy(
        0, inputs.line_index, share
    )
    if parallel_state.get_context_parallel_world_size() > 1:
        line = SumOverRanks.apply(line, parallel_state.get_context_parallel_group())
    rows, longest = batch.token_ids_BT.shape
    column = torch.arange(longest, device=line.device)[None]
    starts = torch.tensor(inputs.starts, device=line.device)[:, None]
    inside = (column >= 1) & (column < batch.lengths_B.to(line.device)[:, None])
    slot = (starts + column - 1).clamp(0, inputs.line_length - 1)
    return torch.where(inside, line[slot.expand(rows, longest)], 0.0)


LossOnRows = Callable[[torch.Tensor, TrainBatch], tuple[torch.Tensor, Any]]
"""(logprobs_BT, the micro-batch's rows) -> (scalar loss, anything to collect)."""


def run_schedule(
    chunks: list[torch.nn.Module],
    micro_batches: Sequence[TrainBatch],
    layout: RowLayout,
    vocab_size: int,
    on_rows: LossOnRows,
    *,
    forward_only: bool,
) -> list[Any]:
    """Run forward (and backward) over the micro-batches; what `on_rows` collected, on last-stage ranks, else []."""
    device = torch.device("cpu") if not torch.cuda.is_available() else torch.device("cuda", torch.cuda.current_device())

    def forward_step(data: Iterator[TrainBatch], model: torch.nn.Module) -> tuple[torch.Tensor, Callable[..., Any]]:
        rows = next(data)
        inputs = build_model_input(rows, layout, device)
        output = model(
            inputs.token_ids,
            inputs.position_ids,
            None,
            packed_seq_params=inputs.packed,
            output_processor=logprob_processor,
            output_processor_context=OutputRequest(
                inputs.next_token_ids, inputs.needed, layout.temperature, vocab_size, layout.logits_chunk
            ),
        )

        def on_logprobs(share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
            loss, collected = on_rows(logprobs_of_rows(share, inputs, rows), rows)
            return loss, torch.zeros([], dtype=torch.int, device=device), collected

        return output, on_logprobs

    schedule = get_forward_backward_func()
    with torch.set_grad_enabled(not forward_only):
        return schedule(
            forward_step_func=forward_step,
            data_iterator=iter(micro_batches),
            model=chunks,
            num_microbatches=len(micro_batches),
            seq_length=1,  # shapes travel with the activations (variable_seq_lengths)
            micro_batch_size=1,
            forward_only=forward_only,
        )
