"""Transport for engines on their own devices: trainer rank 0 broadcasts packed buckets, by NCCL or on CPU by gloo.

The group is neither side's default group. It has its own store, on a port that the system picks, whose address travels
with every bucket: a receiver that sees a new address joins a new group. So a group is formed at the first bucket, and
formed again after an engine was replaced, without a call of its own.
"""

import logging
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, TCPStore

from nemo_rl.weight_sync.interfaces import Bucket, WeightSyncError

logger = logging.getLogger(__name__)

HANDLE = "process_group"
LOOPBACK = "127.0.0.1"
_ABANDONED = "abandoned"
_STORE_TIMEOUT = timedelta(seconds=30)


class TransferGroup:
    """One formed group: rank 0 is the trainer, the others are engine workers. Every wait ends by the deadline, or as
    soon as the trainer abandons the group."""

    def __init__(
        self, store: TCPStore, rank: int, world: int, device: torch.device, address: str, deadline_s: float
    ) -> None:
        self.store, self.rank, self.world, self.deadline_s = store, rank, world, deadline_s
        self._await_members()
        self.group = _make_group(PrefixStore("weights", store), rank, world, device, address, deadline_s)

    def broadcast(self, buffer: torch.Tensor, what: str) -> None:
        """Rank 0's bytes into everyone's `buffer`."""
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        work = self.group.broadcast([buffer], options)
        self._poll(work.is_completed, f"{what} was not complete")
        work.wait()

    def abandon(self) -> None:
        """Give the group up, with whatever is under way in it."""
        self.group.abort()

    def _await_members(self) -> None:
        """Forming a group blocks until all are there, so it begins when they are."""
        self.store.set(f"member/{self.rank}", "here")
        for rank in range(self.world):
            self._poll(
                lambda rank=rank: self.store.check([f"member/{rank}"]),
                f"rank {rank} of the weight transfer did not join",
            )

    def _poll(self, done: Any, otherwise: str) -> None:
        start, pause, checked = time.monotonic(), 0.0002, time.monotonic()
        while not done():
            now = time.monotonic()
            if now - start > self.deadline_s:
                raise WeightSyncError(f"{otherwise} within {self.deadline_s:.0f} s")
            if now - checked > 0.5 and self.rank:
                checked = now
                if reason := _abandoned(self.store):
                    raise WeightSyncError(f"the trainer gave this weight transfer up: {reason}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)


class ProcessGroupSender:
    """Rank 0 sends from a thread of its own, so that the next bucket is merged and packed meanwhile."""

    def __init__(self, serves: bool, receivers: int, device: torch.device, address: str, deadline_s: float) -> None:
        self.serves, self.world, self.device = serves, receivers + 1, device
        self.address, self.deadline_s = address, deadline_s
        self.buffers: dict[int, torch.Tensor] = {}
        self.sending: dict[int, Future[None]] = {}
        self.group: TransferGroup | None = None
        if serves:
            self.store = _serve_store(address)
            self.thread = ThreadPoolExecutor(1, thread_name_prefix="weights")

    def buffer(self, index: int, nbytes: int) -> torch.Tensor:
        slot = index % 2 if self.serves else 0
        self._await(slot)
        if slot not in self.buffers or self.buffers[slot].numel() < nbytes:
            self.buffers[slot] = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        return self.buffers[slot]

    def handle(self, index: int, nbytes: int) -> dict[str, Any]:
        return {HANDLE: (self.address, self.store.port)} if self.serves else {}

    def send(self, bucket: Bucket) -> None:
        if self.serves:
            self.sending[bucket.index % 2] = self.thread.submit(self._send, bucket)

    def finish(self) -> None:
        for slot in list(self.sending):
            self._await(slot)

    def close(self) -> None:
        """Receivers that still wait are told; a later run of `open_sender` forms a new group."""
        if not self.serves:
            return
        self.store.set(_ABANDONED, "it closed its end")
        self.thread.shutdown(wait=False, cancel_futures=True)
        if self.group is not None:
            self.group.abandon()

    def _send(self, bucket: Bucket) -> None:
        """A failure here ends what the receivers wait for: the trainer waits for them, not for this thread."""
        try:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            if self.group is None:
                self.group = TransferGroup(self.store, 0, self.world, self.device, self.address, self.deadline_s)
            self.group.broadcast(self.buffers[bucket.index % 2][: bucket.nbytes], f"sending bucket {bucket.index}")
        except BaseException as error:
            self.store.set(_ABANDONED, f"{type(error).__name__}: {error}")
            raise

    def _await(self, slot: int) -> None:
        if (sent := self.sending.pop(slot, None)) is None:
            return
        try:
            sent.result(timeout=2 * self.deadline_s)
        except FutureTimeout as error:
            raise WeightSyncError(
                f"the thread that sends weights did not answer within {2 * self.deadline_s:.0f} s"
            ) from error


class ProcessGroupReceiver:
    """One engine worker. `rank` counts from 0 over the workers of all engines."""

    def __init__(self, rank: int, world: int, device: torch.device, deadline_s: float) -> None:
        self.rank, self.world, self.device, self.deadline_s = rank + 1, world, device, deadline_s
        self.joined: Any = None
        self.group: TransferGroup | None = None
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)

    def receive(self, bucket: Bucket) -> torch.Tensor:
        if HANDLE not in bucket.handles:
            raise ConnectionError(
                f"bucket {bucket.index} does not say which group brings it, but {sorted(bucket.handles)}"
            )
        address = tuple(bucket.handles[HANDLE])  # a list by now, if it crossed to another process of vLLM's
        if self.joined != address:
            self._join(*address)
        if self.memory.numel() < bucket.nbytes:
            self.memory = torch.empty(bucket.nbytes, dtype=torch.uint8, device=self.device)
        assert self.group is not None
        self.group.broadcast(self.memory[: bucket.nbytes], f"receiving bucket {bucket.index}")
        return self.memory

    def release(self) -> None:
        """The memory is the engine's own and is kept for the next sync."""

    def close(self) -> None:
        if self.group is not None:
            self.group.abandon()
        self.group, self.joined = None, None

    def _join(self, host: str, port: int) -> None:
        self.close()
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT)
        self.group = TransferGroup(
            store, self.rank, self.world, self.device, _address_towards(host, port), self.deadline_s
        )
        self.joined = (host, port)


def _serve_store(address: str) -> TCPStore:
    """A store that listens on `address` only."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.bind((address, 0))
    listener.listen()
    port = listener.getsockname()[1]
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_STORE_TIMEOUT,
        master_listen_fd=listener.detach(),
    )


def _address_towards(host: str, port: int) -> str:
    """This machine's address on the way to `host`; nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _abandoned(store: TCPStore) -> str | None:
    """Why the trainer sends no more, if it does not. When the store is gone, the trainer is."""
    try:
        return store.get(_ABANDONED).decode() if store.check([_ABANDONED]) else None
    except (RuntimeError, ConnectionError):
        return "its process is gone"


def _make_group(
    store: PrefixStore, rank: int, world: int, device: torch.device, address: str, deadline_s: float
) -> Any:
    if device.type == "cuda":
        nccl = torch.distributed.ProcessGroupNCCL.Options()
        # Our own deadline comes first. Torch's watchdog would end this process when the other side dies.
        nccl._timeout = timedelta(seconds=2 * deadline_s + 60)
        with _without_nccl_watchdog():
            return torch.distributed.ProcessGroupNCCL(store, rank, world, nccl)
    gloo = torch.distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo._timeout = timedelta(seconds=deadline_s)
    gloo._devices = [torch.distributed.ProcessGroupGloo.create_device(hostname=address)]
    return torch.distributed.ProcessGroupGloo(store, rank, world, gloo)


@contextmanager
def _without_nccl_watchdog() -> Iterator[None]:
    """Torch reads this when a group is made; the training ranks' own group keeps what it had."""
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
