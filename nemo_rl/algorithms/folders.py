"""Folders that the configuration names for what a run writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nemo_rl.config.errors import ConfigError


def check_folder(key: str, folder: str) -> None:
    """ConfigError unless files can be written below `folder`, which need not exist and is not made."""
    nearest = next(path for path in (Path(folder).absolute(), *Path(folder).absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{key}={folder} cannot be a folder: {nearest} is a file; name another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}={folder} cannot be written: no permission in {nearest}; name another folder")


@contextmanager
def making(key: str, folder: str) -> Iterator[None]:
    """What the system says against making `folder` as a sentence: not every refusal shows in permissions."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{key}={folder} cannot be made: {error.strerror or error}; name another folder") from error
