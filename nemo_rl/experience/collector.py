"""Generates without pause: a Ray actor that keeps a bounded number of groups under way and hands finished ones over."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_rl.data.interfaces import Prompt
from nemo_rl.data.loader import PromptLoader
from nemo_rl.environments.registry import make_environment
from nemo_rl.environments.settings import EnvironmentSettings
from nemo_rl.experience.engine_pool import EnginePool, GenerationFailed
from nemo_rl.experience.episodes import RolloutSettings
from nemo_rl.experience.group_player import GroupPlayer
from nemo_rl.experience.interfaces import RolloutGroup
from nemo_rl.experience.replay_buffer import ReplayBuffer
from nemo_rl.experience.sources import group_id_of
from nemo_rl.utils.logging_setup import setup_worker_logging

logger = logging.getLogger(__name__)

REQUEST_DEADLINE_S = 3600.0
MOST_THREADS = 64


class CollectorStarved(TimeoutError):
    """Training waited for groups longer than it is willing to."""


@dataclass(frozen=True)
class CollectorSettings:
    """What is collected and how much of it at a time."""

    groups_per_step: int
    samples: int
    max_age: int
    max_failures: int
    shuffle: bool
    seed: int
    rollouts: RolloutSettings
    environments: Mapping[str, EnvironmentSettings]


@dataclass
class Taken:
    """The reply to `take`: the groups of a step, or which engines need replacement before there can be any."""

    groups: list[RolloutGroup] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


class Collector:
    """Owns the walk over the dataset, the groups under way, and the buffer of finished ones.

    One event loop runs everything here, so that state never changes between two lines without an `await`.
    """

    def __init__(
        self, settings: CollectorSettings, prompts: Sequence[Prompt], tokenizer: Any, engines: Sequence[Any]
    ) -> None:
        setup_worker_logging("collector")
        self.settings = settings
        self.prompts = {prompt.prompt_id: prompt for prompt in prompts}
        self.loader = PromptLoader(prompts, 1, settings.shuffle, settings.seed)
        self.buffer = ReplayBuffer(settings.groups_per_step, settings.max_age)
        self.changed = asyncio.Condition()
        self.pool = EnginePool(engines, REQUEST_DEADLINE_S, self._wake)
        self.environments = {name: make_environment(name, given) for name, given in settings.environments.items()}
        threads = min(MOST_THREADS, settings.samples * settings.groups_per_step)
        self.player = GroupPlayer(
            self.pool.generate, self.environments, tokenizer, settings.rollouts, settings.samples, threads
        )
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.again: list[str] = []
        self.paused: str | None = None
        self.failures = 0
        self.failure: BaseException | None = None
        self.stopped = False

    async def ready(self) -> None:
        """Answers when everything is built."""

    async def run(self) -> None:
        """Collect until stopped. Its end by an error is the signal that the trainer watches for."""
        while not self.stopped:
            await self._until(lambda: self.stopped or self.failure is not None or self._may_begin())
            if self.failure is not None:
                raise self.failure
            while self._may_begin():
                self._begin(*self._next())

    async def take(self, deadline_s: float) -> Taken:
        """The groups of the present version's step. Returns without them if engines have died meanwhile."""
        groups: list[RolloutGroup] = []

        def over() -> bool:
            nonlocal groups
            if self.failure is None and not self.pool.dead:
                groups = self.buffer.take() or []
            return bool(groups or self.pool.dead or self.failure is not None)

        if not over():
            self.buffer.waited_for()
            self._wake()
        if not await self._until(lambda: bool(groups) or over(), deadline_s):
            raise CollectorStarved(
                f"no {self.settings.groups_per_step} groups within {deadline_s:.0f} s: {self.describe()}"
            )
        if self.failure is not None:
            raise self.failure
        self._wake()
        return Taken(groups, sorted(self.pool.dead), self.metrics())

    async def pause(self, reason: str, drain: bool, deadline_s: float) -> None:
        """Begin no group until `resume`. With `drain`, issue no request either, and return when engines are idle."""
        self.paused = reason
        if not drain:
            return
        self.pool.hold()
        if not await self._until(lambda: not self.pool.active or self.failure is not None, deadline_s):
            raise CollectorStarved(f"draining for {reason} did not end within {deadline_s:.0f} s: {self.describe()}")
        if self.failure is not None:
            raise self.failure

    async def resume(self, version: int | None, engines: Sequence[Any]) -> None:
        """Go on, with the engines at `version` (None: as before)."""
        self.paused = None
        if version is not None:
            self.buffer.publish(version)
        self.pool.release(engines)
        self._wake()

    async def state_dict(self) -> dict[str, Any]:
        """The position in the data, and the groups that were begun and not trained on: they are begun again."""
        return {"loader": self.loader.state_dict(), "pending": [*self.buffer.entries, *self.again]}

    async def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state["loader"])
        self.again = list(state["pending"])

    async def stop(self) -> None:
        self.stopped = True
        self._wake()
        for task in self.tasks.values():
            task.cancel()
        self.player.close()
        for environment in self.environments.values():
            environment.close()

    def metrics(self) -> dict[str, float]:
        """After a step's groups were taken."""
        dropped = {f"dropped_groups/{reason}": float(n) for reason, n in sorted(self.buffer.dropped.items())}
        return {
            "buffer_size": float(self.buffer.ready),
            "buffer_depth": float(self.buffer.depth),
            "groups_in_flight": float(len(self.tasks)),
            "reissued_requests": float(self.pool.reissued),
            **dropped,
        }

    def describe(self) -> str:
        """What is going on, for a person who wonders why nothing comes."""
        doing = [
            f"{self.buffer.ready} groups are ready, {len(self.tasks)} under way ({_some(list(self.tasks))})",
            f"{self.pool.active} requests are with the engines",
        ]
        if awaited := self.buffer.awaited():
            doing.append(f"training waits for {_some(awaited)}, which would become too old otherwise")
        if self.pool.refused:
            doing.append(f"{self.pool.refused} requests wait for a weight sync that completes")
        if self.pool.dead:
            doing.append(f"engines {sorted(self.pool.dead)} are dead")
        if self.paused is not None:
            doing.append(f"collection is paused for {self.paused}")
        if self.buffer.version is None:
            doing.append("no weights have arrived yet")
        if self.buffer.dropped:
            doing.append(f"dropped so far: {dict(self.buffer.dropped)}")
        return "; ".join(doing)

    def _may_begin(self) -> bool:
        return self.paused is None and self.failure is None and not self.stopped and self.buffer.room > 0

    def _next(self) -> tuple[Prompt, str]:
        if self.again:
            group_id = self.again.pop(0)
            return self.prompts[group_id.partition("/")[2]], group_id
        (prompt,) = self.loader.next_prompts()
        return prompt, group_id_of(self.loader.epoch, prompt.prompt_id)

    def _begin(self, prompt: Prompt, group_id: str) -> None:
        self.buffer.admit(group_id)
        self.tasks[group_id] = asyncio.create_task(self._play(prompt, group_id), name=group_id)

    async def _play(self, prompt: Prompt, group_id: str) -> None:
        started = time.time()
        try:
            group = await self.player.play(prompt, group_id)
            group.metrics.update(started_at=started, ended_at=time.time())
            self.buffer.add(group)
        except GenerationFailed as error:
            self._generation_failed(group_id, error)
        except Exception as error:  # travels to the trainer through `run` and `take`
            logger.exception("group %s failed", group_id)
            self.failure = self.failure or error
        finally:
            self.tasks.pop(group_id, None)
            self._wake()

    def _generation_failed(self, group_id: str, error: GenerationFailed) -> None:
        self.failures += 1
        self.buffer.drop(group_id, "generation_failed")
        logger.warning(
            "group %s is dropped (%d of at most %d): %s", group_id, self.failures, self.settings.max_failures, error
        )
        if self.failures > self.settings.max_failures:
            self.failure = self.failure or error

    async def _until(self, condition: Callable[[], bool], deadline_s: float | None = None) -> bool:
        """Wait until `condition` holds, looking again at every change; False if the deadline came first."""
        async with self.changed:
            try:
                async with asyncio.timeout(deadline_s):
                    await self.changed.wait_for(condition)
            except TimeoutError:
                return False
        return True

    def _wake(self) -> None:
        self._waking = asyncio.ensure_future(self._notify())  # kept, or the loop might lose it

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def _some(names: list[str], shown: int = 5) -> str:
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "") if names else "none"
