"""From a YAML file and command-line overrides to a checked configuration."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from nemo_rl.config.errors import ConfigError
from nemo_rl.config.inheritance import Given, read_with_parents
from nemo_rl.config.interpolation import resolve
from nemo_rl.config.keys import KnownKeys, schema_keys
from nemo_rl.config.messages import origin, sentences
from nemo_rl.config.overrides import apply_overrides
from nemo_rl.config.schema.master import MasterConfig
from nemo_rl.config.schema.refused import drop_refused
from nemo_rl.config.schema.root import RootConfig, default_tree
from nemo_rl.config.tree import get, leaves, merge

RUN_HEADER = "# The resolved configuration: every key, with all references and defaults filled in.\n"


def load_config[Root: RootConfig](
    path: Path,
    overrides: Sequence[str] = (),
    root: type[Root] = MasterConfig,  # type: ignore[assignment]
) -> Root:
    """Read a file with what it inherits, apply overrides, fill in defaults, resolve references and check everything.

    `root` is the schema of the entry point. Raises ConfigError with one sentence for each thing that is wrong.
    """
    given = read_with_parents(Path(path))
    if dotted := list(_dotted_keys(given, given.tree, root)):
        more = f" (and {len(dotted) - 1} more)" if len(dotted) > 1 else ""
        raise ConfigError(f"{dotted[0]}{more}")
    apply_overrides(given, overrides, root)
    return _check(given, root)


def _check[Root: RootConfig](given: Given, root: type[Root]) -> Root:
    if misplaced := list(_not_mappings(given, root)):
        raise ConfigError("\n".join(misplaced))
    try:
        tree = resolve(merge(default_tree(root), given.tree), written=[key for key, _ in leaves(given.tree)])
    except ConfigError as error:
        raise ConfigError(f"{error}{origin(given, str(error).partition(':')[0])}") from None
    refused = [
        f"{path}={value!r} is refused, as it is not built here: {reason}{origin(given, path)}"
        for path, value, reason in drop_refused(tree, root.refused)
    ]
    try:
        config = root.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(refused + sentences(error, given, KnownKeys.of(given.tree, root)))) from None
    if refused:
        raise ConfigError("\n".join(refused))
    return config


def _dotted_keys(given: Given, tree: Mapping[str, Any], root: type[RootConfig], prefix: str = "") -> Iterator[str]:
    """Keys of files that are written as on the command line. In free mappings a dot is a character like any other."""
    known = schema_keys(root)
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if "." in str(key):
            *sections, last = path.split(".")
            nested = ": {".join([*sections, f"{last}: ..."]) + "}" * len(sections)
            yield f"`{key}` is a dotted key; in a file write it nested: {nested}{origin(given, path)}"
        elif isinstance(value, Mapping) and not (path in known and known[path].is_mapping):
            yield from _dotted_keys(given, value, root, f"{path}.")


def _not_mappings(given: Given, root: type[RootConfig]) -> Iterator[str]:
    """Sections that were given something else; looked for first, because references into them would fail obscurely."""
    for key in schema_keys(root).values():
        value = get(given.tree, key.path, {})
        if key.section is not None and not isinstance(value, dict) and not (key.optional and value is None):
            hint = "; one dataset per run" if isinstance(value, list) else ""
            yield f"{key.path} must be a mapping of keys, found {value!r}{hint}{origin(given, key.path)}"


def resolved_yaml(config: RootConfig) -> str:
    """The whole configuration as YAML that `load_config` reads back to an equal one."""
    return RUN_HEADER + yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
