"""Buckets: every tensor once, in order, aligned, none larger than the limit but the one that is alone."""

from typing import Any

import pytest
import torch

from nemo_rl.weight_sync.buckets import ALIGNMENT, BucketStream, group_by_size
from nemo_rl.weight_sync.checksum import checksum
from nemo_rl.weight_sync.interfaces import Bucket, tensors_of


class MemorySender:
    """Two plain buffers in turn, as every transport has them."""

    def __init__(self) -> None:
        self.buffers: dict[int, torch.Tensor] = {}

    def buffer(self, index: int, nbytes: int) -> torch.Tensor:
        self.buffers[index % 2] = torch.full((nbytes,), 255, dtype=torch.uint8)
        return self.buffers[index % 2]

    def handle(self, index: int, nbytes: int) -> dict[str, Any]:
        return {"here": index % 2}


def _tensors() -> list[tuple[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    return [
        ("bf16", torch.randn(3, 5, generator=g).bfloat16()),
        ("odd bytes", torch.randint(0, 255, (7,), generator=g, dtype=torch.uint8)),
        ("transposed", torch.randn(4, 6, generator=g).t()),
        ("scalar", torch.tensor(2.5)),
        ("large", torch.randn(2000, generator=g)),
        ("after", torch.randn(64, generator=g)),
        ("empty", torch.empty(0, 4)),
    ]


def _stream(limit: int, checksums: bool = True) -> list[tuple[Bucket, list[tuple[str, torch.Tensor]]]]:
    sender = MemorySender()
    stream = BucketStream(iter(_tensors()), sender, version=7, limit=limit, checksums=checksums)
    found = []
    while (bucket := stream.next()) is not None:
        views = [(name, view.clone()) for name, view in tensors_of(bucket, sender.buffers[bucket.handles["here"]])]
        found.append((bucket, views))
    assert stream.next() is None
    return found


@pytest.mark.parametrize("limit", [1, 300, 1024, 1 << 20])
def test_every_tensor_arrives_once_in_order_bit_for_bit(limit: int) -> None:
    arrived = [pair for _, views in _stream(limit) for pair in views]
    assert [name for name, _ in arrived] == [name for name, _ in _tensors()]
    for (_, got), (_, sent) in zip(arrived, _tensors(), strict=True):
        assert got.dtype is sent.dtype and got.shape == sent.shape and torch.equal(got, sent)


def test_buckets_are_numbered_and_carry_the_version() -> None:
    buckets = [bucket for bucket, _ in _stream(512)]
    assert [bucket.index for bucket in buckets] == list(range(len(buckets))) and len(buckets) > 2
    assert {bucket.version for bucket in buckets} == {7}


def test_tensors_start_at_aligned_offsets_and_do_not_overlap() -> None:
    for bucket, _ in _stream(1 << 20):
        end = 0
        for entry in bucket.entries:
            assert entry.offset % ALIGNMENT == 0 and entry.offset >= end
            end = entry.offset + entry.nbytes
        assert bucket.nbytes >= end


def test_groups_keep_to_the_limit_and_a_larger_tensor_is_alone() -> None:
    # aligned bytes 256, 256, 256, 256, 8192, 256, 0
    groups = [[name for name, _ in group] for group in group_by_size(_tensors(), 1024)]
    assert groups == [["bf16", "odd bytes", "transposed", "scalar"], ["large"], ["after", "empty"]]


def test_tensors_that_fill_a_bucket_exactly_share_it() -> None:
    tensors = [(str(i), torch.zeros(64)) for i in range(4)]  # 256 bytes each
    assert [len(group) for group in group_by_size(tensors, 512)] == [2, 2]
    assert [len(group) for group in group_by_size(tensors, 511)] == [1, 1, 1, 1]
    assert list(group_by_size([], 512)) == []


def test_entries_carry_checksums_of_their_own_bytes_or_zero() -> None:
    for bucket, views in _stream(1024):
        assert [entry.checksum for entry in bucket.entries] == [checksum(view) for _, view in views]
    assert {entry.checksum for bucket, _ in _stream(1024, checksums=False) for entry in bucket.entries} == {0}
