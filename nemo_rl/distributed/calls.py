"""Waiting for actors: never without a deadline, never without a name, never losing the actor's own error."""

import logging
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayTaskError

logger = logging.getLogger(__name__)


class WorkerDied(RuntimeError):
    """A worker process ended while something was expected of it."""


class WorkerTimeout(TimeoutError):
    """A worker did not answer within its deadline."""


def gather(refs: Sequence[Any], what: str, deadline_s: float) -> list[Any]:
    """Results of all calls, in order. The first failure is raised as soon as it happens, with the worker's own message.

    Raises WorkerDied, WorkerTimeout, or the exception that the worker raised.
    """
    waiting = list(refs)
    try:
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=deadline_s)
            if not done:
                raise WorkerTimeout(
                    f"{what}: {len(waiting)} of {len(refs)} workers gave no answer within {deadline_s:.0f} s"
                )
            ray.get(done[0], timeout=deadline_s)
        return ray.get(list(refs), timeout=deadline_s)
    except (ActorDiedError, RayActorError) as error:
        raise WorkerDied(
            f"{what}: a worker process ended ({_cause(error)}); its log is in the run's Ray session"
        ) from error
    except GetTimeoutError as error:
        raise WorkerTimeout(f"{what}: no answer within {deadline_s:.0f} s") from error
    except RayTaskError as error:
        raise error.as_instanceof_cause() from None


def _cause(error: BaseException) -> str:
    """Ray's message of a dead actor is a whole traceback; its last unindented line says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return lines[-1] if lines else type(error).__name__
