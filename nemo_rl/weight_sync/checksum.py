"""A checksum of a tensor's bytes, the same on CPU and GPU, that notices changed, swapped and shifted values."""

import torch

_BLOCK = 1 << 22
_PRIME = 65521


def checksum(tensor: torch.Tensor) -> int:
    """Weighted sum of the bytes taken as 16-bit words (a Fletcher-like code), modulo 2^64 as a signed integer.

    Exact integer arithmetic, so it does not depend on device or order of reduction. Reads the tensor once, in blocks.
    """
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if raw.numel() % 2:
        raw = torch.nn.functional.pad(raw, (0, 1))
    words = raw.view(torch.int16)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for number, block in enumerate(words.split(_BLOCK)):
        weights = torch.arange(block.numel(), device=words.device, dtype=torch.int32) % _PRIME + 1 + number % 251
        total += (block.to(torch.int32) * weights).sum(dtype=torch.int64)
    return int(total)
