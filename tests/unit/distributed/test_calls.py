"""What the driver learns when a worker fails, dies or hangs; and what a Ray session leaves behind: nothing."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray

from nemo_rl.config.schema import ClusterConfig
from nemo_rl.distributed.calls import WorkerDied, WorkerTimeout, gather, watched
from nemo_rl.distributed.cluster import ClusterError, ray_cluster, reserve


class Worker:
    def answer(self, value: int, after: float = 0.0) -> int:
        time.sleep(after)
        return value

    def fail(self) -> None:
        raise LookupError("the third layer is missing")

    def die(self) -> None:
        os._exit(7)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def traces_on_disk() -> set[str]:
    """Temporary folders of sessions of this process, and the object stores that a Ray process left behind."""
    folders = {str(path) for path in Path("/tmp").glob(f"nrl-*/session_*_{os.getpid()}")}
    return folders | {name for name in os.listdir("/dev/shm") if name.startswith("plasma")}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Ray session; afterwards nothing of it may be left."""
    running, left = children(), traces_on_disk()
    logs = tmp_path_factory.mktemp("logs")
    with ray_cluster(ClusterConfig(accelerator="cpu"), workers=2, gpus=0, logs_to=logs):
        assert traces_on_disk() - left
        yield logs
    assert [psutil.Process(pid).name() for pid in children() - running if psutil.pid_exists(pid)] == []
    assert not traces_on_disk() - left


@pytest.fixture
def worker(session: Path) -> Iterator[ray.actor.ActorHandle]:
    actor = ray.remote(Worker).options(num_cpus=0).remote()
    yield actor
    ray.kill(actor)


def test_results_come_in_the_order_of_the_calls(worker: ray.actor.ActorHandle) -> None:
    assert gather([worker.answer.remote(i, after=0.05 * (2 - i)) for i in range(3)], "asking", 30.0) == [0, 1, 2]


def test_a_workers_own_exception_arrives_as_itself(worker: ray.actor.ActorHandle) -> None:
    with pytest.raises(LookupError) as failure:
        gather([worker.fail.remote()], "asking", 30.0)
    assert str(failure.value) == "the third layer is missing"


def test_a_failure_is_not_kept_waiting_by_a_slow_worker(worker: ray.actor.ActorHandle) -> None:
    slow = ray.remote(Worker).options(num_cpus=0).remote()
    ray.get(slow.answer.remote(0))
    start = time.monotonic()
    with pytest.raises(LookupError):
        gather([slow.answer.remote(0, after=20.0), worker.fail.remote()], "asking", 30.0)
    assert time.monotonic() - start < 10
    ray.kill(slow)


def test_a_dead_worker_is_named_by_what_was_asked_of_it(worker: ray.actor.ActorHandle) -> None:
    with pytest.raises(
        WorkerDied, match=r"policy\.train: a worker process ended, that of rank 3 on 10\.0\.0\.7 \(.+\)"
    ):
        gather([worker.die.remote()], "policy.train", 30.0, ["rank 3 on 10.0.0.7"])


def test_a_worker_that_does_not_answer_ends_the_wait(worker: ray.actor.ActorHandle) -> None:
    other = ray.remote(Worker).options(num_cpus=0).remote()
    calls = [other.answer.remote(0), worker.answer.remote(0, after=30.0)]
    with pytest.raises(WorkerTimeout, match=r"policy\.save: 1 of 2 workers gave no answer within 3 s \(rank 1\)"):
        gather(calls, "policy.save", 3.0, ["rank 0", "rank 1"])
    ray.kill(other)


def test_a_watched_call_that_fails_interrupts_any_wait_with_its_error(worker: ray.actor.ActorHandle) -> None:
    collector = ray.remote(Worker).options(num_cpus=0).remote()
    with (
        watched(collector.fail.remote(), "the collector"),
        pytest.raises(LookupError, match="the third layer is missing"),
    ):
        gather([worker.answer.remote(0, after=20.0)], "policy.train", 30.0)


def test_a_watched_actor_that_dies_is_named(worker: ray.actor.ActorHandle) -> None:
    collector = ray.remote(Worker).options(num_cpus=0).remote()
    with watched(collector.die.remote(), "the collector"), pytest.raises(WorkerDied, match="the collector: a worker"):
        gather([worker.answer.remote(0, after=20.0)], "policy.train", 30.0)


def test_resources_that_are_not_there_are_counted(session: Path) -> None:
    bundles = [{"CPU": 1.0, "GPU": 1.0}] * 3
    with (
        pytest.raises(ClusterError, match=r"no place for the policy within 2 s: it needs 3 bundles, 3 GPUs and 3 CPUs"),
        reserve(bundles, "PACK", "the policy", deadline_s=2.0),
    ):
        pass
