"""Every key of the schema: its type, default, limits and description, found by its dotted name."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from nemo_rl.config.errors import suggestion
from nemo_rl.config.schema.data import CustomEnvConfig
from nemo_rl.config.schema.master import MasterConfig
from nemo_rl.config.schema.refused import refusal
from nemo_rl.config.schema.root import RootConfig
from nemo_rl.config.schema.section import Section, is_section
from nemo_rl.config.tree import Tree, get


@dataclass(frozen=True)
class Key:
    """One key. `section` is the class below it, if it is a section; `optional` sections may be null."""

    path: str
    field: FieldInfo
    section: type[Section] | None = None
    optional: bool = False

    @property
    def is_mapping(self) -> bool:
        """Whether the value is a free mapping, whose own keys the schema does not know."""
        return any(get_origin(part) is dict for part in (self.field.annotation, *get_args(self.field.annotation)))

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)


def keys_of(section: type[Section], prefix: str = "") -> Iterator[Key]:
    """Every key below a section, depth first, in the order of the schema."""
    for name, field in section.model_fields.items():
        below = _section_in(field.annotation)
        yield Key(f"{prefix}{name}", field, below, optional=below is not None and not is_section(field.annotation))
        if below is not None:
            yield from keys_of(below, f"{prefix}{name}.")


def _section_in(annotation: Any) -> type[Section] | None:
    """The section class of `SomeConfig` or `SomeConfig | None`."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return next((part for part in parts if is_section(part)), None)


@cache
def schema_keys(root: type[RootConfig] = MasterConfig) -> dict[str, Key]:
    """All keys of a root by dotted name."""
    return {key.path: key for key in keys_of(root)}


class KnownKeys:
    """Which keys a user may set: those of the schema, below free mappings, and known ones that are refused by name."""

    def __init__(self, keys: dict[str, Key], root: type[RootConfig]) -> None:
        self.keys, self.root = keys, root

    @classmethod
    def of(cls, tree: Tree, root: type[RootConfig] = MasterConfig) -> "KnownKeys":
        """The schema's keys and those of the environments of one's own that a tree holds."""
        keys, environments = dict(schema_keys(root)), get(tree, "env")
        for name in environments if isinstance(environments, dict) and "env" in keys else ():
            if f"env.{name}" not in keys:
                keys |= {key.path: key for key in keys_of(CustomEnvConfig, f"env.{name}.")}
        return cls(keys, root)

    def allows(self, path: str) -> bool:
        if path in self.keys or refusal(path, self.root.refused):
            return True
        parent = path.rpartition(".")[0]
        while parent and parent not in self.keys:
            parent = parent.rpartition(".")[0]
        return parent in self.keys and self.keys[parent].is_mapping

    def suggestion(self, path: str) -> str:
        """The nearest key, or how to add an environment of one's own."""
        section, _, rest = path.partition(".")
        if section == "env" and "env" in self.keys and rest.endswith(".entry_point"):
            return f"; to add an environment write +{path}=..."
        return suggestion(path, self.keys)
