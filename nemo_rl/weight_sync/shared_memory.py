"""Transport for engines on the trainer's own host without a GPU: two POSIX shared-memory segments, used in turn."""

import mmap
import os
import socket
from itertools import count
from typing import Any

import torch

from nemo_rl.weight_sync.interfaces import Bucket

_numbers = count()
_FOLDER = "/dev/shm"


class SharedMemorySender:
    """Rank 0 of each host writes. Names vanish from the file system as soon as receivers have mapped them, so that not
    even a killed process leaves memory behind."""

    def __init__(self, serves: bool) -> None:
        self.serves = serves
        self.segments: dict[int, tuple[str, torch.Tensor]] = {}
        self.private: dict[int, torch.Tensor] = {}

    def buffer(self, index: int, nbytes: int) -> torch.Tensor:
        slot = index % 2
        if not self.serves:
            return torch.empty(nbytes, dtype=torch.uint8)
        if slot not in self.segments or self.segments[slot][1].numel() < nbytes:
            self._drop(slot)
            name = f"nemo_rl-{os.getpid()}-{next(_numbers)}"
            self.segments[slot] = (name, _map(name, nbytes, create=True))
        return self.segments[slot][1]

    def handle(self, index: int, nbytes: int) -> dict[str, Any]:
        if not self.serves:
            return {}
        name, memory = self.segments[index % 2]
        return {socket.gethostname(): (name, memory.numel())}

    def send(self, bucket: Bucket) -> None:
        """The bytes are already where the receiver looks."""

    def finish(self) -> None:
        for name, _ in self.segments.values():
            _unlink(name)

    def forget(self) -> None:
        """New receivers will come: start with fresh segments."""
        for slot in list(self.segments):
            self._drop(slot)

    def close(self) -> None:
        self.forget()

    def _drop(self, slot: int) -> None:
        if slot in self.segments:
            _unlink(self.segments.pop(slot)[0])


class SharedMemoryReceiver:
    """Maps each segment once and keeps it."""

    def __init__(self) -> None:
        self.mapped: dict[str, torch.Tensor] = {}

    def receive(self, bucket: Bucket) -> torch.Tensor:
        host = socket.gethostname()
        if host not in bucket.handles:
            raise ConnectionError(
                f"no trainer rank on host {host} serves shared memory (hosts that do: {sorted(bucket.handles)}); "
                "engines on other hosts need policy.generation.colocated.enabled=false"
            )
        name, nbytes = bucket.handles[host]
        if name not in self.mapped:
            self.mapped[name] = _map(name, nbytes, create=False)
        return self.mapped[name]

    def release(self) -> None:
        """Mappings are kept: the next sync uses the same segments."""

    def close(self) -> None:
        self.mapped.clear()


def _map(name: str, nbytes: int, create: bool) -> torch.Tensor:
    flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
    descriptor = os.open(os.path.join(_FOLDER, name), flags, 0o600)
    try:
        if create:
            os.posix_fallocate(descriptor, 0, nbytes)
        return torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)
    finally:
        os.close(descriptor)


def _unlink(name: str) -> None:
    path = os.path.join(_FOLDER, name)
    if os.path.exists(path):
        os.unlink(path)
