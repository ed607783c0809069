"""Buckets through a real gloo group, sender and receivers in threads of this process."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from nemo_rl.weight_sync.buckets import BucketStream
from nemo_rl.weight_sync.interfaces import Bucket, WeightSyncError, tensors_of
from nemo_rl.weight_sync.process_group import LOOPBACK, ProcessGroupReceiver, ProcessGroupSender

CPU = torch.device("cpu")


def weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (7, 3), "b": (1000,), "large": (300, 40), "c": (1,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def sync(
    sender: ProcessGroupSender, receivers: list[ProcessGroupReceiver], tensors: dict[str, torch.Tensor]
) -> list[dict]:
    """What each receiver got; one bucket holds 8 KB, so that `large` travels alone."""
    stream = BucketStream(tensors.items(), sender, version=1, limit=8192, checksums=False)
    received: list[dict] = [{} for _ in receivers]

    def load(index: int, bucket: Bucket) -> None:
        views = tensors_of(bucket, receivers[index].receive(bucket))
        received[index].update({name: tensor.clone() for name, tensor in views})

    with ThreadPoolExecutor(len(receivers)) as pool:
        while (bucket := stream.next()) is not None:
            sender.send(bucket)
            for loading in [pool.submit(load, i, bucket) for i in range(len(receivers))]:
                loading.result(timeout=20)
    sender.finish()
    return received


def ends(receivers: int, deadline_s: float = 10.0) -> tuple[ProcessGroupSender, list[ProcessGroupReceiver]]:
    sender = ProcessGroupSender(True, receivers, CPU, LOOPBACK, deadline_s)
    return sender, [ProcessGroupReceiver(rank, receivers + 1, CPU, deadline_s) for rank in range(receivers)]


@pytest.mark.parametrize("receivers", [1, 3])
def test_every_receiver_gets_every_tensor_bit_for_bit(receivers: int) -> None:
    sender, others = ends(receivers)
    for seed in (0, 1):
        sent = weights(seed)
        for got in sync(sender, others, sent):
            assert got.keys() == sent.keys()
            assert all(torch.equal(got[name], sent[name]) for name in sent)
    sender.close()


def test_a_new_sender_forms_a_new_group_with_an_old_and_a_new_receiver() -> None:
    sender, receivers = ends(2)
    sync(sender, receivers, weights(0))
    sender.close()
    replacement = ProcessGroupSender(True, 2, CPU, LOOPBACK, 10.0)
    receivers[1] = ProcessGroupReceiver(1, 3, CPU, 10.0)
    sent = weights(1)
    for got in sync(replacement, receivers, sent):
        assert torch.equal(got["b"], sent["b"])
    replacement.close()


def test_a_receiver_that_never_joins_ends_the_wait_at_the_deadline() -> None:
    sender, receivers = ends(2, deadline_s=1.0)
    stream = BucketStream(weights(0).items(), sender, version=1, limit=1 << 20, checksums=False)
    bucket = stream.next()
    assert bucket is not None
    sender.send(bucket)
    with pytest.raises(WeightSyncError, match=r"rank 2 of the weight transfer did not join within 1 s"):
        receivers[0].receive(bucket)
    with pytest.raises(WeightSyncError, match=r"did not join within 1 s"):
        sender.finish()


def test_a_receiver_that_waits_is_told_when_the_trainer_gives_up() -> None:
    sender, receivers = ends(2, deadline_s=60.0)
    stream = BucketStream(weights(0).items(), sender, version=1, limit=1 << 20, checksums=False)
    bucket = stream.next()
    assert bucket is not None
    start = time.monotonic()
    threading.Timer(0.5, sender.close).start()
    with pytest.raises(WeightSyncError, match="gave this weight transfer up"):
        receivers[0].receive(bucket)
    assert time.monotonic() - start < 5


class BrokenGroup:
    def broadcast(self, buffer: torch.Tensor, what: str) -> None:
        raise RuntimeError("the cable is out")

    def abandon(self) -> None: ...


def test_a_sender_that_fails_ends_the_receivers_wait_and_says_why() -> None:
    sender, receivers = ends(1, deadline_s=60.0)
    sender.group = BrokenGroup()  # type: ignore[assignment]
    bucket = BucketStream(weights(0).items(), sender, version=1, limit=1 << 20, checksums=False).next()
    assert bucket is not None
    start = time.monotonic()
    sender.send(bucket)
    with pytest.raises(WeightSyncError, match="gave this weight transfer up: RuntimeError: the cable is out"):
        receivers[0].receive(bucket)
    assert time.monotonic() - start < 5
    with pytest.raises(RuntimeError, match="the cable is out"):
        sender.finish()
    sender.close()


def test_default_groups_are_not_touched() -> None:
    sender, receivers = ends(1)
    sync(sender, receivers, weights(0))
    assert not torch.distributed.is_initialized()
    sender.close()


def test_a_bucket_of_another_transport_is_refused() -> None:
    with pytest.raises(ConnectionError, match="shared"):
        ProcessGroupReceiver(0, 2, CPU, 1.0).receive(Bucket(1, 0, (), 0, {"shared memory of a host": "x"}))
