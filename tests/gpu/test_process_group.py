"""Buckets over NCCL between two processes. Needs one NVIDIA GPU, which both use (see one_device); skipped elsewhere."""

import multiprocessing
import os
from multiprocessing.connection import Connection

import pytest
import torch

from nemo_rl.weight_sync.buckets import BucketStream
from nemo_rl.weight_sync.interfaces import tensors_of
from nemo_rl.weight_sync.process_group import LOOPBACK, ProcessGroupReceiver, ProcessGroupSender

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch sees none"),
]
DEADLINE_S = 60.0


def receive(device: str, buckets: Connection) -> None:
    """The engine's end, in a process that NCCL takes for one on another host."""
    os.environ.update(NCCL_HOSTID="receiver", NCCL_SOCKET_IFNAME="lo")
    receiver = ProcessGroupReceiver(0, 2, torch.device(device), DEADLINE_S)
    while (bucket := buckets.recv()) is not None:
        tensors = tensors_of(bucket, receiver.receive(bucket))
        buckets.send({name: tensor.cpu().numpy() for name, tensor in tensors})
    receiver.close()


def transfer(device: str, syncs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=receive, args=(device, theirs))
    process.start()
    sender = ProcessGroupSender(True, 1, torch.device(device), LOOPBACK, DEADLINE_S)
    try:
        for version in range(syncs):
            shapes = {"a": (7, 3), "b": (1000,), "large": (300, 40), "c": (1,)}
            sent = {name: torch.randn(shape, generator=generator).to(device) for name, shape in shapes.items()}
            stream, received = BucketStream(sent.items(), sender, version, limit=8192, checksums=True), {}
            while (bucket := stream.next()) is not None:
                sender.send(bucket)
                ours.send(bucket)
                assert ours.poll(DEADLINE_S), f"bucket {bucket.index} of sync {version} did not arrive"
                received |= ours.recv()
            sender.finish()
            assert received.keys() == sent.keys()
            assert all(torch.equal(torch.from_numpy(received[name]), sent[name].cpu()) for name in sent)
        ours.send(None)
        process.join(20)
        assert process.exitcode == 0
    finally:
        sender.close()
        process.kill()


def test_every_tensor_arrives_bit_for_bit_sync_after_sync(monkeypatch) -> None:
    monkeypatch.setenv("NCCL_HOSTID", "sender")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    transfer("cuda:0", syncs=3)
