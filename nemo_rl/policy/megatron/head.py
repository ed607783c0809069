"""The output layer with float32 logits from bfloat16 operands.

Logits of a real model are 20 or 30: rounded to bfloat16 they move by up to 0.06, and the log-probabilities of engine
and trainer differ by as much. Products are accumulated in float32 anyway; here they are not rounded afterwards. vLLM
does the same with `head_dtype: float32`.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, copy_to_tensor_model_parallel_region


def float32_logits(hidden: torch.Tensor, output_layer: torch.nn.Module, weight: torch.Tensor | None) -> torch.Tensor:
    """This rank's share of the logits, float32 [..., V / tp]. hidden [..., h] is whole on every tensor rank.

    An output layer that is more than a plain linear (one with an adapter) computes its logits itself.
    """
    if not is_plain(output_layer):
        logits, _ = output_layer(hidden, weight=weight)
        return logits.float()
    used = output_layer.weight if weight is None else weight
    shared = copy_to_tensor_model_parallel_region(hidden)
    flat = _Float32Product.apply(shared.flatten(0, -2), used)
    return flat.view(*hidden.shape[:-1], -1)


def frozen_weight(output_layer: torch.nn.Module, weight: torch.Tensor | None) -> torch.Tensor | None:
    """The weight of a plain output layer that does not train, else None; `weight` is that of a tied embedding."""
    if not is_plain(output_layer):
        return None
    used: torch.Tensor = output_layer.weight if weight is None else weight  # type: ignore[assignment]
    return None if used.requires_grad else used


def is_plain(output_layer: torch.nn.Module) -> bool:
    """Whether the layer is a linear without bias or adapter, and nothing more: Gemma 2's bounds its logits."""
    return (
        isinstance(output_layer, ColumnParallelLinear)
        and type(output_layer).forward is ColumnParallelLinear.forward
        and getattr(output_layer, "bias", None) is None
    )


def float32_product(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """hidden [n, h] x weight [V, h]^T -> float32 [n, V]."""
    if hidden.is_cuda and hidden.dtype is not torch.float32:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return torch.mm(hidden.float(), weight.t().float())


class _Float32Product(torch.autograd.Function):
    """hidden [n, h] x weight [V, h]^T -> float32 [n, V]; gradients in the operands' dtype."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight)
        return float32_product(hidden, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        hidden, weight = ctx.saved_tensors
        grad = grads[0].to(hidden.dtype)
        for_weight = grad.t() @ hidden if ctx.needs_input_grad[1] else None
        return grad @ weight, for_weight
