"""Hydra's override grammar on the command line: `a.b=1`, `+a.b=1`, `++a.b=1`, `~a.b`."""

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from nemo_rl.config.errors import ConfigError
from nemo_rl.config.inheritance import Given
from nemo_rl.config.keys import KnownKeys
from nemo_rl.config.schema.master import MasterConfig
from nemo_rl.config.schema.root import RootConfig
from nemo_rl.config.tree import get, has, put, remove

COMMAND_LINE = "the command line"


def apply_overrides(given: Given, overrides: Sequence[str], root: type[RootConfig] = MasterConfig) -> None:
    """Change what the files gave, in order: each override sees what those before it did."""
    parser = OverridesParser.create()
    for text in overrides:
        _apply(given, _parse(parser, text), text, KnownKeys.of(given.tree, root))


def _parse(parser: OverridesParser, text: str) -> Override:
    try:
        override = parser.parse_override(text)
    except HydraException as error:
        problem = str(error).splitlines()[0]
        raise ConfigError(
            f"override {text!r} is not understood: {problem}; write key=value, +key=value, ++key=value or ~key, and "
            "quote values with special characters twice, as in 'key=\"a, b\"'"
        ) from error
    if override.package is not None:
        raise ConfigError(f"override {text!r}: `@` (a Hydra package) is not supported here; write key=value")
    if override.is_sweep_override():
        raise ConfigError(
            f"override {text!r} asks for several runs (a sweep), which is not supported; write a list as [1,2]"
        )
    return override


def _apply(given: Given, override: Override, text: str, known: KnownKeys) -> None:
    key = override.key_or_group.replace("/", ".")
    if override.type is OverrideType.DEL:
        _delete(given, override, key, text, known)
        return
    value = override.value()
    if override.type is OverrideType.CHANGE and not (has(given.tree, key) or known.allows(key)):
        raise ConfigError(f"override {text!r}: `{key}` is not a key of the configuration{known.suggestion(key)}")
    present = get(given.tree, key)
    if override.type is OverrideType.ADD and present is not None and not isinstance(value, dict | list):
        raise ConfigError(
            f"override {text!r}: `{key}` is already set, to {present!r} by {given.source_of(key)}; write "
            f"{key}=... to change "
            f"it or ++{key}=... to set it in any case"
        )
    put(given.tree, key, value)
    given.sources = {k: v for k, v in given.sources.items() if isinstance(value, dict) or not k.startswith(f"{key}.")}
    given.sources[key] = COMMAND_LINE


def _delete(given: Given, override: Override, key: str, text: str, known: KnownKeys) -> None:
    """Without the user's value a key of the schema has its default again; a key that is there by default stays so."""
    if not has(given.tree, key):
        if known.allows(key):
            return
        raise ConfigError(f"override {text!r}: there is no `{key}` to delete{known.suggestion(key)}")
    present, expected = get(given.tree, key), override.value()
    if expected is not None and present != expected:
        raise ConfigError(f"override {text!r}: `{key}` is {present!r}, so it is not deleted; write ~{key}")
    remove(given.tree, key)
