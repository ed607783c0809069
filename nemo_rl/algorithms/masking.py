"""Masks and reductions that are safe where the masked-out values are infinite or NaN.

`x * mask` is NaN where x is inf and the mask is 0. Everything here selects with `torch.where` before it reduces, so
that masked-out entries reach neither the value nor the gradient.
"""

import torch
from torch import Tensor


def mask_by_length(lengths_B: Tensor, width: int) -> Tensor:
    """True for the first lengths_B[b] of `width` columns; bool [B, T].

    Lengths, not token ids, say what is padding: where the pad id is also the end-of-sequence id, the real
    end-of-sequence token counts.
    """
    return torch.arange(width, device=lengths_B.device)[None, :] < lengths_B[:, None]


def masked_fill_zero(values: Tensor, mask: Tensor) -> Tensor:
    """Values where the mask is True and exact zeros elsewhere; the gradient of the zeros is zero.

    Apply it to the *inputs* of exp or log as well: the backward pass of exp at a masked-out inf is 0 * inf.
    """
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def at_least_float32(values: Tensor) -> Tensor:
    """Half-precision values as float32; float32 and float64 as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum over the entries where `mask` is True; over everything when `dim` is None."""
    return masked_fill_zero(values, mask).sum() if dim is None else masked_fill_zero(values, mask).sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean over the entries where `mask` is True; exactly 0, with zero gradient, where there is none."""
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(values, mask, dim) / count.clamp(min=1)
