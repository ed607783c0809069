"""Log-probabilities through a frozen output layer, whose gradient is made while the logits exist.

d log p[target] / d hidden = (onehot[target] - p) W / temperature depends on the loss only by one factor per position.
So the forward pass makes it, chunk by chunk, and the backward pass multiplies: no logits are kept or computed again,
which with a vocabulary of 150,000 is a third of a small model's training step.
"""

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
from torch.autograd.function import once_differentiable

from nemo_rl.policy.megatron.head import float32_product


class FrozenHeadLogprobs(torch.autograd.Function):
    """hidden [n, h], weight [V / tp, h], targets [n] -> log softmax(hidden W^T / temperature)[target], float32 [n].

    Slots of the vocabulary past `vocab` are padding. `chunk` positions have logits at once; None: all. The gradient is
    this tensor rank's share, in the dtype of `hidden`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        vocab: int,
        chunk: int | None,
    ) -> torch.Tensor:
        values = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        slopes = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        size = chunk or max(len(targets), 1)
        for start in range(0, len(targets), size):
            part = slice(start, start + size)
            softmax = _Softmax(float32_product(hidden[part], weight), targets[part], temperature, vocab)
            values[part] = softmax.logprobs
            if slopes is not None:
                slopes[part] = softmax.slopes(weight).div_(temperature)
        ctx.save_for_backward(slopes)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return (grads[0][:, None] * slopes).to(slopes.dtype), None, None, None, None, None


class _Softmax:
    """The softmax of one chunk's logits [n, V / tp], in their place, over all tensor ranks."""

    def __init__(self, logits: torch.Tensor, targets: torch.Tensor, temperature: float, vocab: int) -> None:
        if temperature != 1.0:
            logits.div_(temperature)
        width = logits.shape[-1]
        first = parallel_state.get_tensor_model_parallel_rank() * width
        logits[:, max(vocab - first, 0) :] = float("-inf")
        group = parallel_state.get_tensor_model_parallel_group()
        logits, highest = VocabParallelCrossEntropy.calculate_logits_max(logits)
        torch.distributed.all_reduce(highest, op=torch.distributed.ReduceOp.MAX, group=group)
        self.elsewhere, self.column, chosen, total, self.exponentials = (
            VocabParallelCrossEntropy.calculate_predicted_logits(logits, targets, highest, first, first + width)
        )
        torch.distributed.all_reduce(chosen, group=group)
        torch.distributed.all_reduce(total, group=group)
        self.total = total
        self.logprobs = chosen - total.log()

    def slopes(self, weight: torch.Tensor) -> torch.Tensor:
        """(onehot[target] - p) W over this rank's vocabulary, [n, h]. Ends the use of the exponentials."""
        position = torch.arange(len(self.total), device=self.total.device)
        of_target = self.exponentials[position, self.column] / self.total
        like_weight = (
            self.exponentials
            if weight.dtype is torch.float32
            else torch.empty_like(self.exponentials, dtype=weight.dtype)
        )
        negative = torch.div(self.exponentials, -self.total[:, None], out=like_weight)
        # 1 - p of the target is taken before rounding: of a likely token little would be left of it after.
        negative[position, self.column] = torch.where(self.elsewhere, -of_target, 1 - of_target).to(weight.dtype)
        return negative @ weight
