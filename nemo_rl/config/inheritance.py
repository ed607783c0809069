"""YAML files that inherit from each other through `defaults:`, and the memory of which file set which key."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from nemo_rl.config.errors import ConfigError
from nemo_rl.config.tree import REPLACE_MARK, Tree, leaves, merge


@dataclass
class Given:
    """What the user gave: the merged tree (references unresolved) and, for each key in it, where it comes from."""

    tree: Tree = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def source_of(self, path: str) -> str | None:
        """Where a key was set, or else the nearest key that holds it, or else one below it."""
        holder = path
        while holder:
            if holder in self.sources:
                return self.sources[holder]
            holder = holder.rpartition(".")[0]
        return next((source for key, source in self.sources.items() if key.startswith(f"{path}.")), None)


def read_with_parents(path: Path, seen: tuple[Path, ...] = ()) -> Given:
    """A YAML file on top of its `defaults:`, which are relative to it, the later on top of the earlier."""
    path = Path(path)
    if path.resolve() in seen:
        chain = " -> ".join(p.name for p in (*seen, path))
        raise ConfigError(f"{path}: `defaults:` goes round in a circle: {chain}")
    own = _read(path)
    given = Given()
    for parent in _parents(own.pop("defaults", []), path):
        inherited = read_with_parents(path.parent / parent, (*seen, path.resolve()))
        given.tree = merge(given.tree, inherited.tree)
        given.sources |= inherited.sources
    given.tree = merge(given.tree, own)
    given.sources |= {key.removesuffix(f".{REPLACE_MARK}"): str(path) for key, _ in leaves(own)}
    return given


def _parents(defaults: Any, path: Path) -> list[str]:
    parents = [defaults] if isinstance(defaults, str) else defaults
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigError(f"{path}: `defaults` must be a path or a list of paths, found {defaults!r}")
    return parents


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such configuration file")
    try:
        loaded = OmegaConf.load(path)
        content = OmegaConf.to_container(loaded, resolve=False)
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, DictConfig) or not isinstance(content, dict):
        raise ConfigError(f"{path}: a configuration file must be a mapping of keys, found a {type(content).__name__}")
    return {str(key): value for key, value in content.items()}
