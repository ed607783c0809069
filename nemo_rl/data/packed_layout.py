"""How the tokens of several sequences lie in one packed row, and which of them a context-parallel rank holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import torch
from torch import Tensor


@dataclass(frozen=True)
class PackedLayout:
    """Where S sequences begin and end in one packed row; int32 [S + 1], as fused attention kernels take them.

    `cu_seqlens` counts real tokens only; `cu_seqlens_padded` gives the positions in the row, each sequence rounded up.
    """

    cu_seqlens: Tensor
    cu_seqlens_padded: Tensor

    @property
    def total_length(self) -> int:
        """Tokens of the packed row, padding included."""
        return int(self.cu_seqlens_padded[-1])

    @property
    def max_length(self) -> int:
        """The longest sequence, padding included."""
        return int(self.cu_seqlens_padded.diff().max()) if len(self.cu_seqlens_padded) > 1 else 0


def packed_layout(lengths: Sequence[int], sequence_multiple: int, total_multiple: int) -> PackedLayout:
    """Lay sequences one after the other, each rounded up to `sequence_multiple` tokens, e.g. 2 * cp * tp.

    The row is rounded up to `total_multiple` (`sequence_length_round`, so that shapes repeat); the last sequence takes
    that padding and stays a multiple of both.
    """
    padded = [-(-length // sequence_multiple) * sequence_multiple for length in lengths]
    if padded:
        round_to = lcm(sequence_multiple, total_multiple)
        padded[-1] += -sum(padded) % round_to
    return PackedLayout(_cumulative(lengths), _cumulative(padded))


def _cumulative(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0).to(torch.int32)


def zigzag_indices(length: int, cp_size: int, rank: int) -> Tensor:
    """Positions of a sequence that context-parallel `rank` holds; int64 [length / cp_size].

    The sequence is cut into 2 * cp_size chunks and rank r takes chunks r and 2 * cp_size - 1 - r, so that a causal
    mask gives every rank the same work.
    """
    if length % (2 * cp_size):
        raise ValueError(f"{length} tokens do not divide into {2 * cp_size} chunks for context parallelism {cp_size}")
    chunks = torch.arange(length).view(2 * cp_size, -1)
    return torch.cat([chunks[rank], chunks[2 * cp_size - 1 - rank]])


def zigzag_inverse(length: int, cp_size: int) -> Tensor:
    """Index that puts the ranks' parts, concatenated in rank order, back into sequence order; int64 [length]."""
    return torch.cat([zigzag_indices(length, cp_size, rank) for rank in range(cp_size)]).argsort()


def packed_zigzag_indices(layout: PackedLayout, cp_size: int, rank: int) -> Tensor:
    """Positions of a packed row that context-parallel `rank` holds: the zigzag of each of its sequences, in order."""
    starts, sizes = layout.cu_seqlens_padded[:-1].tolist(), layout.cu_seqlens_padded.diff().tolist()
    parts = [start + zigzag_indices(size, cp_size, rank) for start, size in zip(starts, sizes, strict=True)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)
