"""A checksum of a tensor's bytes, the same on CPU and GPU, that notices changed, swapped and shifted values."""

from collections.abc import Sequence
from functools import cache

import torch

_BLOCK = 1 << 22
_BLOCKS_AT_ONCE = 8
_PRIME = 65521


@cache
def _weights(device: torch.device) -> torch.Tensor:
    """Weight of each 16-bit word of a block: its place in it. Small enough that a word times it fits 32 bits."""
    return torch.arange(_BLOCK, device=device, dtype=torch.int32) % _PRIME + 1


def checksum(tensor: torch.Tensor) -> int:
    """Weighted sum of the bytes taken as 16-bit words (a Fletcher-like code), a signed 64-bit integer.

    Word i of block b counts (i mod 65521 + 1) * (b + 1) times. Exact integer arithmetic that wraps, so the result does
    not depend on device or order of reduction.
    """
    return checksums([tensor])[0]


def checksums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The checksum of each tensor, with one wait for the device in all."""
    if not tensors:
        return []
    found: list[int] = torch.stack([_checksum(tensor) for tensor in tensors]).tolist()
    return found


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = (torch.nn.functional.pad(raw, (0, 1)) if raw.numel() % 2 else raw).view(torch.int16)
    weights = _weights(words.device)
    if words.numel() <= _BLOCK:
        return (words.to(torch.int32) * weights[: words.numel()]).sum(dtype=torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), _BLOCK * _BLOCKS_AT_ONCE):
        part = words[start : start + _BLOCK * _BLOCKS_AT_ONCE]
        whole = part.numel() // _BLOCK
        numbers = torch.arange(whole + 1, device=words.device) + start // _BLOCK + 1
        sums = (part[: whole * _BLOCK].view(whole, _BLOCK).to(torch.int32) * weights).sum(dim=1, dtype=torch.int64)
        rest = part[whole * _BLOCK :]
        last = (rest.to(torch.int32) * weights[: rest.numel()]).sum(dtype=torch.int64)
        total += (sums * numbers[:whole]).sum() + last * numbers[whole]
    return total
