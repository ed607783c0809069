"""Waiting for actors: never without a deadline, never without a name, never losing the actor's own error."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

logger = logging.getLogger(__name__)


class WorkerDied(RuntimeError):
    """A worker process ended while something was expected of it."""


class WorkerTimeout(TimeoutError):
    """A worker did not answer within its deadline."""


_watched: dict[Any, str] = {}


@contextmanager
def watched(ref: Any, name: str) -> Iterator[None]:
    """A call that should not end. While the context is open every `gather` notices its end, and raises its error."""
    _watched[ref] = name
    try:
        yield
    finally:
        del _watched[ref]


def gather(refs: Sequence[Any], what: str, deadline_s: float, names: Sequence[str] = ()) -> list[Any]:
    """Results of all calls, in order. The first failure is raised as soon as it happens, with the worker's own message.

    `names` says who answers each call. Raises WorkerDied, WorkerTimeout, or the exception that the worker raised; also
    those of watched calls.
    """
    name_of = dict(zip(refs, names, strict=False))
    waiting, current = list(refs), None
    try:
        while waiting:
            done, rest = ray.wait([*waiting, *_watched], num_returns=1, timeout=deadline_s)
            if not done:
                raise WorkerTimeout(
                    f"{what}: {len(waiting)} of {len(refs)} workers gave no answer within {deadline_s:.0f} s"
                    + _in_brackets(name_of[ref] for ref in waiting if ref in name_of)
                )
            current = done[0]
            if current in _watched:
                what = _watched[current]
                ray.get(current, timeout=deadline_s)
                raise WorkerDied(f"{what} ended before the run did")
            waiting = [ref for ref in waiting if ref in set(rest)]
            ray.get(current, timeout=deadline_s)
        return ray.get(list(refs), timeout=deadline_s)
    except RayActorError as error:
        who = f", that of {name_of[current]}" if current in name_of else ""
        raise WorkerDied(
            f"{what}: a worker process ended{who} ({_cause(error)}); see worker_logs in the run's folder"
        ) from error
    except GetTimeoutError as error:
        raise WorkerTimeout(f"{what}: no answer within {deadline_s:.0f} s") from error
    except RayTaskError as error:
        raise own_error(error) from error


def _in_brackets(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return f" ({text})" if text else ""


def own_error(error: BaseException) -> BaseException:
    """What a worker raised, without Ray's wrapping, whose text is a whole remote traceback; or `error` itself."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException) and error.cause is not error:
        error = error.cause
    return error


def _cause(error: BaseException) -> str:
    """Ray's message of a dead actor is a whole traceback; its last unindented line says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return lines[-1] if lines else type(error).__name__
