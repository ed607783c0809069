"""The collector's side of the engines: one request at a time, to the replica with least to do, surviving its death and
weights that it did not get."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from ray.exceptions import RayActorError

from nemo_rl.distributed.calls import own_error
from nemo_rl.generation.interfaces import EngineLost, GenerationOutput, GenerationRequest
from nemo_rl.weight_sync.interfaces import WeightSyncError

logger = logging.getLogger(__name__)

MOST_LOSSES = 5
"""Times that a request may be lost, with an engine or with its weights, before it is taken to be the cause."""


class GenerationFailed(RuntimeError):
    """A request that no engine answered."""


class EnginePool:
    """Requests lost with an engine wait for its replacement and are issued again with the seeds they had.

    So are those that an engine gave up because a weight sync broke off, which another one's death is enough for. They
    wait for a `release`: who syncs tries again and then releases, or ends the run.

    `changed` is called whenever a wait elsewhere may be over: a request ended, or a replica was found dead.
    """

    def __init__(self, actors: Sequence[Any], deadline_s: float, changed: Callable[[], None]) -> None:
        self.actors, self.deadline_s, self.changed = list(actors), deadline_s, changed
        self.load = [0] * len(self.actors)
        self.dead: set[int] = set()
        self.reissued = 0
        self.held = False
        self.refused = 0
        self._released = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    @property
    def active(self) -> int:
        """Requests that an engine is working on."""
        return sum(self.load)

    def hold(self) -> None:
        """Issue nothing until `release`; what an engine has goes on."""
        self.held = True
        self._set_gate()

    def release(self, actors: Sequence[Any]) -> None:
        """Go on with these replicas: all are alive and have weights, as far as the caller knows."""
        for replica, actor in enumerate(actors):
            if actor is not self.actors[replica]:
                self.actors[replica], self.load[replica] = actor, 0
        self.dead.clear()
        self.held = False
        self._set_gate()
        self._released.set()
        self._released = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> GenerationOutput:
        """Raises GenerationFailed when the engine refuses the request, or does not answer within the deadline."""
        losses = 0
        while True:
            replica = await self._pick()
            # The release to wait for is the next from here on: it may come before the engine's refusal does.
            actor, released = self.actors[replica], self._released
            try:
                return await self._ask(actor, replica, request)
            except (RayActorError, EngineLost) as error:
                self._found_dead(replica, actor, error)
                lost: Exception = error
            except WeightSyncError as error:
                await self._wait_for_weights(released, error)
                lost = error
            except TimeoutError as error:
                raise GenerationFailed(f"{request.request_id}: no answer within {self.deadline_s:.0f} s") from error
            except Exception as error:
                raise GenerationFailed(f"{request.request_id}: {own_error(error)}") from error
            losses += 1
            if losses > MOST_LOSSES:
                raise GenerationFailed(f"{request.request_id} was lost {losses} times: {own_error(lost)}") from lost
            self.reissued += 1

    async def _pick(self) -> int:
        """The replica with fewest requests. Waits while all are dead or held; the trainer's own wait bounds it."""
        while self.held or len(self.dead) == len(self.actors):
            await self._open.wait()
        return min((r for r in range(len(self.actors)) if r not in self.dead), key=lambda r: self.load[r])

    async def _ask(self, actor: Any, replica: int, request: GenerationRequest) -> GenerationOutput:
        self.load[replica] += 1
        try:
            async with asyncio.timeout(self.deadline_s):
                (output,) = await actor.generate.remote([request])
        finally:
            if self.actors[replica] is actor:
                self.load[replica] -= 1
            self.changed()
        return output

    async def _wait_for_weights(self, released: asyncio.Event, error: Exception) -> None:
        if not self.refused:
            logger.warning("requests wait for a weight sync that completes: %s", own_error(error))
        self.refused += 1
        try:
            await released.wait()
        finally:
            self.refused -= 1

    def _found_dead(self, replica: int, actor: Any, error: Exception) -> None:
        if self.actors[replica] is actor and replica not in self.dead:
            logger.warning("engine %d is dead: %s", replica, str(error).splitlines()[0])
            self.dead.add(replica)
            self._set_gate()
            self.changed()

    def _set_gate(self) -> None:
        if not self.held and len(self.dead) < len(self.actors):
            self._open.set()
        else:
            self._open.clear()
