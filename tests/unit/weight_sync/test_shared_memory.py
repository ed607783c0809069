"""Shared memory between two processes: bytes arrive, names do not outlive a sync, a foreign host is told why."""

import multiprocessing
import os
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from nemo_rl.weight_sync.buckets import BucketStream
from nemo_rl.weight_sync.interfaces import Bucket, tensors_of
from nemo_rl.weight_sync.shared_memory import SharedMemoryReceiver, SharedMemorySender


def _names() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob(f"nemo_rl-{os.getpid()}-*")}


def _receive(connection: Connection) -> None:
    """Answers every bucket with the values it found."""
    receiver = SharedMemoryReceiver()
    while (bucket := connection.recv()) is not None:
        buffer = receiver.receive(bucket)
        connection.send({name: view.tolist() for name, view in tensors_of(bucket, buffer)})
    receiver.close()


def _sync(sender: SharedMemorySender, connection: Connection, version: int, values: dict[str, torch.Tensor]) -> dict:
    stream = BucketStream(iter(values.items()), sender, version, limit=1024, checksums=True)
    found: dict = {}
    while (bucket := stream.next()) is not None:
        connection.send(bucket)
        found |= connection.recv()
    sender.finish()
    return found


def test_another_process_sees_every_version_and_names_vanish_after_each() -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_receive, args=(theirs,))
    process.start()
    sender = SharedMemorySender(serves=True)
    for version in range(3):
        # the second version has a tensor that its segment is too small for
        large = 3000 if version == 1 else 300
        values = {name: torch.randn(n) for name, n in (("a", 100), ("b", large), ("c", 200), ("d", 2))}
        assert _sync(sender, ours, version, values) == {name: t.tolist() for name, t in values.items()}
        assert _names() == set()
    ours.send(None)
    process.join(30)
    assert process.exitcode == 0
    sender.close()


def test_names_exist_only_between_the_first_bucket_and_the_end() -> None:
    sender = SharedMemorySender(serves=True)
    sender.buffer(0, 100)
    sender.buffer(1, 100)
    assert len(_names()) == 2
    sender.buffer(2, 50)
    assert len(_names()) == 2, "buckets take turns in two segments"
    sender.finish()
    assert _names() == set()
    sender.buffer(0, 200)
    assert len(_names()) == 1, "a larger segment replaces the old one"
    sender.close()
    assert _names() == set()
    sender.close()


def test_segment_is_private_to_its_user() -> None:
    sender = SharedMemorySender(serves=True)
    sender.buffer(0, 10)
    (name,) = _names()
    assert os.stat(f"/dev/shm/{name}").st_mode & 0o077 == 0
    sender.close()


def test_rank_that_serves_nobody_leaves_nothing_and_offers_nothing() -> None:
    sender = SharedMemorySender(serves=False)
    assert sender.buffer(0, 64).numel() == 64
    assert sender.handle(0, 64) == {} and _names() == set()


def test_receiver_on_a_host_without_trainer_rank_says_so() -> None:
    bucket = Bucket(1, 0, (), 0, {"elsewhere": ("nemo_rl-x", 64)})
    with pytest.raises(ConnectionError, match=rf"no trainer rank on host {socket.gethostname()} .*'elsewhere'"):
        SharedMemoryReceiver().receive(bucket)


def test_two_senders_of_one_process_do_not_meet() -> None:
    first, second = SharedMemorySender(serves=True), SharedMemorySender(serves=True)
    first.buffer(0, 8).fill_(1)
    second.buffer(0, 8).fill_(2)
    assert first.buffer(0, 8)[:8].tolist() == [1] * 8
    first.close()
    second.close()
