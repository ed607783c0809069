"""What crosses from trainer to engine: buckets of named tensors, each with a checksum, under a version number."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

NamedTensors = Iterable[tuple[str, torch.Tensor]]


class WeightSyncError(RuntimeError):
    """A weight synchronisation did not complete. The engine refuses to generate until one does."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor inside a bucket: Hugging Face name, dtype ("bfloat16"), shape, place in bytes, checksum."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    checksum: int


@dataclass(frozen=True)
class Bucket:
    """One bucket as the engine needs to know it. `handles` says where the bytes are: one entry per place, e.g. a
    shared-memory name per host, a CUDA IPC handle per GPU."""

    version: int
    index: int
    entries: tuple[TensorEntry, ...]
    nbytes: int
    handles: dict[str, Any] = field(default_factory=dict)


class BucketSender(Protocol):
    """The trainer's end of a transport. Every rank has one; buckets alternate between two buffers."""

    def buffer(self, index: int, nbytes: int) -> torch.Tensor:
        """A uint8 buffer for bucket `index`, at least `nbytes` long; the one of bucket `index - 2` is free again."""
        ...

    def handle(self, index: int, nbytes: int) -> dict[str, Any]:
        """Where the receiver finds the bucket; empty if this rank does not serve any receiver."""
        ...

    def send(self, bucket: Bucket) -> None:
        """Push the bucket to receivers; a no-op where the handle alone is enough."""
        ...

    def finish(self) -> None:
        """All receivers have loaded the last bucket."""
        ...

    def close(self) -> None: ...


class BucketReceiver(Protocol):
    """The engine's end of a transport."""

    def receive(self, bucket: Bucket) -> torch.Tensor:
        """The bucket's bytes as a uint8 tensor on the engine's device, valid until the next call."""
        ...

    def release(self) -> None:
        """The sync is over: let go of memory that belongs to the trainer."""
        ...

    def close(self) -> None: ...


def tensors_of(bucket: Bucket, buffer: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Zero-copy views of a bucket's tensors."""
    for entry in bucket.entries:
        flat = buffer[entry.offset : entry.offset + entry.nbytes].view(getattr(torch, entry.dtype))
        yield entry.name, flat.view(entry.shape)
