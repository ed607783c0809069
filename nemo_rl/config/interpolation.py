"""`${...}` references between keys, and the four arithmetic resolvers."""

import math
from collections.abc import Iterable, Mapping
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


def resolve(tree: Mapping[str, Any], written: Iterable[str] = ()) -> Tree:
    """The tree with every reference replaced by its value.

    `written` are keys to look at first: a default may refer to a key that a user gave a broken reference, and the error
    should name the latter.
    """
    key: str | None = None
    try:
        node = OmegaConf.create(dict(tree))
        for key in written:
            OmegaConf.select(node, key, throw_on_missing=True)
        key = None
        resolved = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, RecursionError) as error:
        key = key or getattr(error, "full_key", None)
        problem = "it refers to itself" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise ConfigError(f"{key or 'configuration'}: a ${{...}} reference cannot be resolved: {problem}") from error
    assert isinstance(resolved, dict)
    return {str(name): value for name, value in resolved.items()}
