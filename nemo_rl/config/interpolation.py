"""`${...}` references between keys, and the four arithmetic resolvers."""

import math
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_rl.config.errors import ConfigError
from nemo_rl.config.tree import Tree

Number = int | float


def _numbers(name: str, values: tuple[Any, ...]) -> tuple[Number, ...]:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} takes numbers, and {value!r} is none")
    return values


def _mul(*values: Any) -> Number:
    return math.prod(_numbers("mul", values))


def _add(*values: Any) -> Number:
    return sum(_numbers("add", values))


def _max(*values: Any) -> Number:
    return max(_numbers("max", values))


def _div(dividend: Any, divisor: Any) -> Number:
    """Exact division of integers stays an integer, because most keys that are computed are counts."""
    a, b = _numbers("div", (dividend, divisor))
    if b == 0:
        raise ValueError(f"div({a}, 0) divides by zero")
    return a // b if isinstance(a, int) and isinstance(b, int) and a % b == 0 else a / b


for _name, _function in (("mul", _mul), ("add", _add), ("max", _max), ("div", _div)):
    OmegaConf.register_new_resolver(_name, _function, replace=True)


def resolve(tree: Mapping[str, Any]) -> Tree:
    """The tree with every reference replaced by its value."""
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(dict(tree)), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = f"{error.full_key}: " if error.full_key else ""
        raise ConfigError(f"{key}cannot resolve a ${{...}} reference: {str(error.msg or error).splitlines()[0]}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}
