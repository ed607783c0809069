"""The rollout side as the driver sees it: replicas of the engine behind one handle."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

from nemo_rl.config.schema import EngineConfig
from nemo_rl.data.packing import balance_by_tokens
from nemo_rl.distributed.calls import WorkerDied, gather
from nemo_rl.generation.interfaces import EngineLost, GenerationOutput, GenerationRequest
from nemo_rl.weight_sync.interfaces import Bucket

logger = logging.getLogger(__name__)

START_DEADLINE_S = 1800.0
GENERATE_DEADLINE_S = 3600.0
PING_DEADLINE_S = 10.0
MOST_RESTARTS = 5
"""Times in a row that a replica may be started again, or a batch be issued again: more is no accident."""


class Generation:
    """Balanced dispatch over replicas; weight updates and sleep go to all of them.

    A replica whose process ends is started again by `restart_dead`; it then needs weights. `recover`, if set, does
    both, and `generate` calls it before it issues lost requests again, with the seeds they had.
    """

    def __init__(self, config: EngineConfig, start_replica: Callable[[int], Any], replicas: int) -> None:
        self.config = config
        self.start_replica = start_replica
        self.actors = [start_replica(replica) for replica in range(replicas)]
        self.report: list[dict[str, Any]] = []
        self.recover: Callable[[], None] | None = None

    def started(self) -> None:
        self.report = self.call("ready", deadline_s=START_DEADLINE_S)

    def call(self, method: str, *args: Any, deadline_s: float = 600.0, **kwargs: Any) -> list[Any]:
        """The same call on every replica; results in replica order."""
        calls = [getattr(actor, method).remote(*args, **kwargs) for actor in self.actors]
        return gather(calls, f"engine.{method}", deadline_s, self.names)

    @property
    def names(self) -> list[str]:
        """What messages call each replica."""
        return [f"engine {place['replica']} on {place['ip']}" for place in self.report]

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """Sample all requests; outputs in the order of the requests. Replicas get equal shares of expected tokens."""
        for attempt in range(MOST_RESTARTS):
            try:
                return self._generate(requests)
            except (WorkerDied, EngineLost) as error:
                if self.recover is None or not self.dead():
                    raise
                logger.warning("issuing %d requests again (attempt %d): %s", len(requests), attempt + 2, error)
                self.recover()
        return self._generate(requests)

    def _generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        if not requests:
            return []
        expected = [len(r.token_ids) + r.max_new_tokens for r in requests]
        split = balance_by_tokens(expected, len(self.actors), equal_counts=True)
        work = [(actor, share) for actor, share in zip(self.actors, split, strict=True) if share]
        calls = [actor.generate.remote([requests[i] for i in share]) for actor, share in work]
        outputs: dict[int, GenerationOutput] = {}
        for (_, share), replies in zip(work, gather(calls, "engine.generate", GENERATE_DEADLINE_S), strict=True):
            outputs.update(zip(share, replies, strict=True))
        return [outputs[i] for i in range(len(requests))]

    def dead(self) -> list[int]:
        """Replicas whose process has ended. One that is merely busy does not count."""
        pings = {actor.ping.remote(): replica for replica, actor in enumerate(self.actors)}
        answered, _ = ray.wait(list(pings), num_returns=len(pings), timeout=PING_DEADLINE_S)
        return sorted(pings[ref] for ref in answered if _is_death(ref))

    def restart_dead(self) -> list[int]:
        """Start a new process for each dead replica and wait until it stands, without weights. Returns which."""
        restarted: set[int] = set()
        for _ in range(MOST_RESTARTS):
            dead = self.dead()
            if not dead:
                return sorted(restarted)
            self._require_their_nodes(dead)
            logger.warning("starting engine replica(s) %s again", dead)
            for replica in dead:
                ray.kill(self.actors[replica])
                self.actors[replica] = self.start_replica(replica)
                restarted.add(replica)
            try:
                self.started()
            except (WorkerDied, EngineLost) as error:
                logger.warning("an engine ended while it started: %s", error)
        raise WorkerDied(f"engine replica(s) {self.dead()} ended again after each of {MOST_RESTARTS} starts")

    def _require_their_nodes(self, replicas: list[int]) -> None:
        """A replica has its place on one node; without that node there is nowhere to start it."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        places = [self.report[replica] for replica in replicas if self.report]
        lost = sorted({place["ip"] for place in places if place["node_id"] not in alive})
        if lost:
            raise WorkerDied(f"node {', '.join(lost)}, on which engine replica(s) {replicas} ran, left the Ray cluster")

    def sleep(self) -> None:
        self.call("sleep")

    def wake(self, tags: Sequence[str] | None = None) -> None:
        self.call("wake", tags)

    def load_bucket(self, bucket: Bucket, verify_only: bool) -> list[Any]:
        """Begin loading on all replicas; returns the calls to wait for."""
        return [actor.load_bucket.remote(bucket, verify_only) for actor in self.actors]

    def fail_update(self, version: int, reason: str) -> None:
        """Tell replicas that the sync broke off, without waiting: some may be gone."""
        for actor in self.actors:
            actor.fail_update.remote(version, reason)

    def shutdown(self) -> None:
        """End all replicas; safe to call twice and after a failure."""
        calls = [actor.shutdown.remote() for actor in self.actors]
        ray.wait(calls, num_returns=len(calls), timeout=30)
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []


def _is_death(ping: Any) -> bool:
    try:
        ray.get(ping, timeout=PING_DEADLINE_S)
    except (RayActorError, EngineLost):
        return True
    return False
