"""Environments by name, and a user's own by entry point."""

import inspect
from collections.abc import Callable
from typing import cast

from nemo_rl.data.errors import did_you_mean
from nemo_rl.environments.grading import EntryPointError, load_entry_point
from nemo_rl.environments.guess_number import GuessNumberEnvironment
from nemo_rl.environments.interfaces import Environment
from nemo_rl.environments.settings import EnvironmentSettings
from nemo_rl.environments.single_turn import ExactMatchEnvironment, GradedEnvironment
from nemo_rl.errors import UserError

EnvironmentFactory = Callable[[EnvironmentSettings], Environment]


class EnvironmentConfigError(UserError, ValueError):
    """An environment that cannot be made; the message is one sentence."""


MATH_VERIFIERS = {"math": "nemo_rl.environments.math_verifier:grade"}


def _math(settings: EnvironmentSettings) -> Environment:
    verifier = settings.verifier or "math"
    if verifier not in MATH_VERIFIERS:
        hint = did_you_mean(verifier, MATH_VERIFIERS)
        raise EnvironmentConfigError(f"unknown verifier {verifier!r} of env.math{hint}")
    return GradedEnvironment(MATH_VERIFIERS[verifier], settings)


def _reasoning_gym(settings: EnvironmentSettings) -> Environment:
    return GradedEnvironment("nemo_rl.environments.reasoning_gym_verifier:grade", settings)


_FACTORIES: dict[str, EnvironmentFactory] = {
    "math": _math,
    "reasoning_gym": _reasoning_gym,
    "exact_match": ExactMatchEnvironment,
    "guess_number": GuessNumberEnvironment,
}


def register_environment(name: str, factory: EnvironmentFactory) -> None:
    """Makes `env_name: name` mean `factory`, in this process. An entry point reaches other processes too."""
    if name in _FACTORIES:
        raise EnvironmentConfigError(f"an environment named {name!r} is already registered")
    _FACTORIES[name] = factory


def make_environment(name: str, settings: EnvironmentSettings) -> Environment:
    """The environment called `name`; `settings.entry_point`, when given, says what that is."""
    if settings.entry_point is not None:
        return _from_entry_point(name, settings.entry_point, settings)
    if name not in _FACTORIES:
        raise EnvironmentConfigError(f"unknown environment {name!r}{did_you_mean(name, _FACTORIES)}")
    return _FACTORIES[name](settings)


def _from_entry_point(name: str, entry_point: str, settings: EnvironmentSettings) -> Environment:
    """A class is an environment of its own; a function is a reward function, run in grader processes."""
    try:
        target = load_entry_point(entry_point)
    except EntryPointError as error:
        raise EnvironmentConfigError(f"env.{name}: {error}") from error
    if inspect.isclass(target):
        return cast(EnvironmentFactory, target)(settings)
    if not callable(target):
        raise EnvironmentConfigError(f"env.{name}: entry point {entry_point!r} is neither a function nor a class")
    return GradedEnvironment(entry_point, settings)
