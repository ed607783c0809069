"""Plain nested dictionaries, addressed by dotted keys."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

Tree = dict[str, Any]

REPLACE_MARK = "_override_"
"""A mapping with this key set to true replaces what it would otherwise be merged into."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """`over` on top of `base`: mappings merge key by key, anything else (lists too) replaces. Inputs stay untouched."""
    merged = deepcopy(dict(base))
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), dict) and value.get(REPLACE_MARK) is not True:
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = without_marks(value)
    return merged


def without_marks(value: Any) -> Any:
    """A copy of a tree without `_override_` keys, which have done their work once nothing is left to merge into."""
    if isinstance(value, Mapping):
        return {key: without_marks(item) for key, item in value.items() if key != REPLACE_MARK}
    return deepcopy(value)


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every (dotted key, value) that is not a non-empty mapping."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


_MISSING = object()


def get(tree: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a dotted key, or the default."""
    found: Any = tree
    for part in path.split("."):
        found = found.get(part, _MISSING) if isinstance(found, Mapping) else _MISSING
        if found is _MISSING:
            return default
    return found


def has(tree: Mapping[str, Any], path: str) -> bool:
    return get(tree, path, _MISSING) is not _MISSING


def put(tree: Tree, path: str, value: Any) -> None:
    """Set the value at a dotted key; what is not a mapping on the way becomes one. A mapping merges into a mapping."""
    *parents, last = path.split(".")
    for part in parents:
        if not isinstance(tree.get(part), dict):
            tree[part] = {}
        tree = tree[part]
    if isinstance(value, Mapping) and isinstance(tree.get(last), dict):
        tree[last] = merge(tree[last], value)
    else:
        tree[last] = deepcopy(value)


def remove(tree: Tree, path: str) -> Any:
    """Take out the value at a dotted key, and mappings that this leaves empty; returns the value."""
    parent, _, last = path.rpartition(".")
    holder = get(tree, parent) if parent else tree
    value = holder.pop(last)
    if parent and not holder:
        remove(tree, parent)
    return value
