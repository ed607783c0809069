"""What the roots of all entry points share: defaults filled in, references resolved, rules obeyed."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from nemo_rl.config.interpolation import resolve
from nemo_rl.config.schema.refused import REFUSED, Refused
from nemo_rl.config.schema.section import Section, is_section
from nemo_rl.config.tree import Tree, merge

Rule = Callable[[Any], Iterator[str]]


class RootConfig(Section):
    """Made by `load_config`, or from a mapping by `model_validate`.

    `rules` yield one sentence per illegal combination; `refused` are NeMo-RL's keys that this entry point lacks.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()
    refused: ClassVar[Mapping[str, Refused]] = REFUSED

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        """Put what was given over the defaults and resolve every `${...}`, so that defaults may refer to other keys."""
        return resolve(merge(default_tree(cls), given)) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _obey_rules(self) -> "RootConfig":
        if found := [sentence for rule in self.rules for sentence in rule(self)]:
            raise ValueError("\n".join(found))
        return self

    @property
    def engine_works_meanwhile(self) -> bool:
        """Whether rollouts are generated while the policy trains, so that the two share a machine's cores."""
        return False


def default_tree(section: type[Section]) -> Tree:
    """Every key with its default, references unresolved."""
    tree: Tree = {}
    for name, info in section.model_fields.items():
        if is_section(info.annotation):
            tree[name] = default_tree(info.annotation)  # type: ignore[arg-type]
        else:
            tree[name] = info.get_default(call_default_factory=True)
    return tree
