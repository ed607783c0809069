"""Packs a stream of named tensors into buckets of bounded size."""

from collections.abc import Iterator

import torch

from nemo_rl.weight_sync.checksum import checksums
from nemo_rl.weight_sync.interfaces import Bucket, BucketSender, NamedTensors, TensorEntry

ALIGNMENT = 256


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def group_by_size(tensors: NamedTensors, limit: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Consecutive tensors whose aligned bytes fit into `limit` together; a larger tensor is alone in its group."""
    group: list[tuple[str, torch.Tensor]] = []
    filled = 0
    for name, tensor in tensors:
        size = _aligned(tensor.numel() * tensor.element_size())
        if group and filled + size > limit:
            yield group
            group, filled = [], 0
        group.append((name, tensor))
        filled += size
    if group:
        yield group


class BucketStream:
    """One pass over the trainer's weights, bucket by bucket, through a sender.

    All training ranks step through it together, since producing a tensor is a collective of theirs; only ranks whose
    sender serves a receiver copy bytes.
    """

    def __init__(self, tensors: NamedTensors, sender: BucketSender, version: int, limit: int, checksums: bool) -> None:
        self.groups = group_by_size(tensors, limit)
        self.sender = sender
        self.version = version
        self.checksums = checksums
        self.index = 0

    def next(self) -> Bucket | None:
        """Fill the next bucket; None when all weights have been handed out."""
        group = next(self.groups, None)
        if group is None:
            return None
        total = sum(_aligned(t.numel() * t.element_size()) for _, t in group)
        buffer = self.sender.buffer(self.index, total)
        flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for _, tensor in group]
        sums = checksums(flat) if self.checksums else [0] * len(flat)
        entries, offset = [], 0
        for (name, tensor), raw, code in zip(group, flat, sums, strict=True):
            buffer[offset : offset + raw.numel()].copy_(raw)
            dtype = str(tensor.dtype).removeprefix("torch.")
            entries.append(TensorEntry(name, dtype, tuple(tensor.shape), offset, raw.numel(), code))
            offset += _aligned(raw.numel())
        bucket = Bucket(self.version, self.index, tuple(entries), total, self.sender.handle(self.index, total))
        self.index += 1
        return bucket
