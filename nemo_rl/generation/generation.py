"""The rollout side as the driver sees it: replicas of the engine behind one handle."""

import logging
from collections.abc import Sequence
from typing import Any

import ray

from nemo_rl.config.schema import EngineConfig
from nemo_rl.data.packing import balance_by_tokens
from nemo_rl.distributed.calls import gather
from nemo_rl.generation.interfaces import GenerationOutput, GenerationRequest
from nemo_rl.weight_sync.interfaces import Bucket

logger = logging.getLogger(__name__)

START_DEADLINE_S = 1800.0
GENERATE_DEADLINE_S = 3600.0


class Generation:
    """Balanced dispatch over replicas; weight updates and sleep go to all of them."""

    def __init__(self, config: EngineConfig, actors: Sequence[Any]) -> None:
        self.config = config
        self.actors = list(actors)
        self.report: list[dict[str, Any]] = []

    def started(self) -> None:
        self.report = self.call("ready", deadline_s=START_DEADLINE_S)

    def call(self, method: str, *args: Any, deadline_s: float = 600.0) -> list[Any]:
        """The same call on every replica; results in replica order."""
        return gather([getattr(a, method).remote(*args) for a in self.actors], f"engine.{method}", deadline_s)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        """Sample all requests; outputs in the order of the requests. Replicas get equal shares of expected tokens."""
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

    def sleep(self) -> None:
        self.call("sleep")

    def wake(self, tags: Sequence[str] | None = None) -> None:
        self.call("wake", tags)

    def load_bucket(self, bucket: Bucket, verify_only: bool) -> list[Any]:
        """Begin loading on all replicas; returns the calls to wait for."""
        return [actor.load_bucket.remote(bucket, verify_only) for actor in self.actors]

    def shutdown(self) -> None:
        """End all replicas; safe to call twice and after a failure."""
        calls = [actor.shutdown.remote() for actor in self.actors]
        ray.wait(calls, num_returns=len(calls), timeout=30)
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []
