"""Log-probabilities from logits whose vocabulary is cut over tensor-parallel ranks and padded at its end."""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy


def next_token_logprobs(
    logits: torch.Tensor, next_token_ids: torch.Tensor, temperature: float, vocab: int
) -> torch.Tensor:
    """log softmax(logits / temperature)[next token], float32 [rows, n]; logits [rows, n, V / tp] of any dtype.

    Slots past `vocab` exist only so that the vocabulary divides by the tensor-parallel size; they are kept out of the
    softmax. Megatron's cross entropy does the reduction over ranks and the gradient.
    """
    scaled = logits.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    width = logits.shape[-1]
    first = parallel_state.get_tensor_model_parallel_rank() * width
    if first + width > vocab:
        padding = torch.arange(first, first + width, device=logits.device) >= vocab
        scaled = scaled.masked_fill(padding, float("-inf"))
    elif scaled.dtype == logits.dtype and temperature == 1.0:
        scaled = scaled.clone()  # Megatron's cross entropy works in place
    return -vocab_parallel_cross_entropy(scaled, next_token_ids)


class SumOverRanks(torch.autograd.Function):
    """All-reduce whose gradient is the identity: every rank computes the same loss from the sum, and gradients of the
    ranks' own shares are added up later by data-parallel reduction."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: torch.distributed.ProcessGroup) -> torch.Tensor:
        total = tensor.clone()
        torch.distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None
