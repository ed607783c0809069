"""The trainer's end of the collector: groups that are ready, and what to do when an engine is found dead."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from nemo_rl.distributed.calls import gather
from nemo_rl.experience.interfaces import RolloutGroup
from nemo_rl.experience.replay_buffer import age
from nemo_rl.experience.rollouts import Generate
from nemo_rl.generation.generation import Generation
from nemo_rl.generation.interfaces import GenerationOutput, GenerationRequest
from nemo_rl.utils.timer import Timer

logger = logging.getLogger(__name__)

CALL_DEADLINE_S = 300.0
STOP_DEADLINE_S = 30.0
GRACE_S = 60.0
"""How much longer than the collector's own deadline its caller waits, so that its explanation arrives first."""


class Collection:
    """The collector as the driver sees it."""

    def __init__(self, actor: Any, generation: Generation, drain_deadline_s: float) -> None:
        self.actor, self.generation, self.drain_deadline_s = actor, generation, drain_deadline_s

    def call(self, method: str, *args: Any, deadline_s: float = CALL_DEADLINE_S) -> Any:
        return gather([getattr(self.actor, method).remote(*args)], f"collector.{method}", deadline_s + GRACE_S)[0]

    def pause(self, reason: str, drain: bool = False) -> None:
        """With `drain`, returns when engines are idle."""
        self.call("pause", reason, drain, self.drain_deadline_s, deadline_s=self.drain_deadline_s)

    def resume(self, version: int | None = None) -> None:
        self.call("resume", version, self.generation.actors)

    def stop(self) -> None:
        """At the end of a run, also after a failure of the collector: nothing is waited for that is not needed."""
        ray.wait([self.actor.stop.remote()], timeout=STOP_DEADLINE_S)

    @contextmanager
    def paused(self, reason: str) -> Iterator[None]:
        self.pause(reason)
        yield
        self.resume()


class AsyncRollouts:
    """Groups from the collector's buffer. `recover` replaces dead engines and publishes the present weights again."""

    def __init__(self, collection: Collection, timer: Timer, deadline_s: float, recover: Callable[[], None]) -> None:
        self.collection, self.timer, self.deadline_s, self.recover = collection, timer, deadline_s, recover
        self.latest: dict[str, float] = {}

    def next_groups(self, version: int) -> list[RolloutGroup]:
        start = time.perf_counter()
        while (taken := self.collection.call("take", self.deadline_s, deadline_s=self.deadline_s)).dead:
            logger.warning("engine replica(s) %s died; replacing them", taken.dead)
            self.recover()
        self.timer.add("idle/buffer_starvation", time.perf_counter() - start)
        ages = [age(group, version) for group in taken.groups]
        mixed = sum(len({s.version for s in r.version_spans}) > 1 for g in taken.groups for r in g.rollouts)
        self.latest = taken.metrics | {
            "avg_trajectory_age": sum(ages) / len(ages),
            "max_trajectory_age": float(max(ages)),
            "rollouts_of_several_versions": float(mixed),
        }
        return taken.groups

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.collection.call("state_dict")
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.collection.call("load_state_dict", state)

    def metrics(self) -> dict[str, float]:
        return self.latest


def generate_while_paused(generation: Generation, collection: Collection, timer: Timer) -> Generate:
    """For validation: training's groups under way go on, but no new ones compete with it."""

    def generate(requests: Sequence[GenerationRequest]) -> list[GenerationOutput]:
        start = time.perf_counter()
        with collection.paused("validation"):
            outputs = generation.generate(requests)
        timer.add("idle/validation", time.perf_counter() - start)
        return outputs

    return generate
