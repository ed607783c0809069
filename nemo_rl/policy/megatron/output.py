"""From the last stage's hidden states to next-token log-probabilities, without ever holding all logits.

Megatron's `output_processor` hook hands over the hidden states and the output layer. Only positions whose next token
counts are projected, `chunk` of them at a time: with a vocabulary of 150,000 the logits of one packed row would
otherwise outweigh everything else. A frozen output layer needs them once (frozen_head.py); where it trains, a chunk's
logits are computed again in the backward pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch.utils.checkpoint import checkpoint

from nemo_rl.policy.megatron.frozen_head import FrozenHeadLogprobs
from nemo_rl.policy.megatron.head import float32_logits, frozen_weight, is_plain
from nemo_rl.policy.megatron.vocab_logprobs import next_token_logprobs


@dataclass(frozen=True)
class OutputRequest:
    """`next_token_ids` [rows, n] of this context rank; `needed` [rows, n] says which of them anybody asks for."""

    next_token_ids: torch.Tensor
    needed: torch.Tensor
    temperature: float
    vocab_size: int
    chunk: int | None


def logprob_processor(
    *,
    hidden_states: torch.Tensor,
    output_layer: torch.nn.Module,
    output_weight: torch.Tensor | None,
    scale_logits: Callable[[torch.Tensor], torch.Tensor],
    config: Any,
    context: OutputRequest,
    **_: Any,
) -> torch.Tensor:
    """Log-probability of each needed next token, 0 elsewhere; float32 [rows, n]. hidden_states [n (/ tp), rows, h]."""

    def log_probability(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return next_token_logprobs(scale_logits(logits), targets, context.temperature, context.vocab_size)

    def project(hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return log_probability(float32_logits(hidden, output_layer, output_weight), targets)

    if config.sequence_parallel and not is_plain(output_layer):
        # Such a layer gathers the sequence itself, so that all positions go through it together.
        logits, _ = output_layer(hidden_states, weight=output_weight)
        whole = log_probability(logits, context.next_token_ids.t().contiguous()).t()
        return torch.where(context.needed, whole, 0.0)
    if config.sequence_parallel:
        hidden_states = gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=False)
    index = context.needed.reshape(-1).nonzero()[:, 0]
    hidden = hidden_states.transpose(0, 1).flatten(0, 1)[index]
    targets = context.next_token_ids.reshape(-1)[index]
    frozen = frozen_weight(output_layer, output_weight)
    if frozen is None or config.use_mup:
        values = _in_chunks(project, hidden, targets, context.chunk)
    else:
        shared = copy_to_tensor_model_parallel_region(hidden)
        values = FrozenHeadLogprobs.apply(
            shared, frozen, targets, context.temperature, context.vocab_size, context.chunk
        )
    flat = torch.zeros(context.needed.numel(), dtype=values.dtype, device=values.device)
    return flat.index_copy(0, index, values).view(context.needed.shape)


def _in_chunks(
    project: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    chunk: int | None,
) -> torch.Tensor:
    if chunk is None or hidden.shape[0] <= chunk:
        return project(hidden, targets)
    pieces = zip(hidden.split(chunk), targets.split(chunk), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([project(h, t) for h, t in pieces])
    again = [checkpoint(project, h, t, use_reentrant=False, preserve_rng_state=False) for h, t in pieces]
    return torch.cat(again)
