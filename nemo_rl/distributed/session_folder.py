"""Temporary folders of local Ray sessions. A run that was killed cannot remove its own; the next run does."""

import fcntl
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

PREFIX = "nrl-"
"""Short: paths of unix sockets below it are limited to 107 bytes."""


@contextmanager
def session_folder() -> Iterator[Path]:
    """A folder for the length of a run, marked by a lock that the kernel lets go when the process ends in any way."""
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove session folders whose run is over. What belongs to somebody else, or has no lock, is left alone."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        try:
            with path.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:
            continue
        logger.info("removed %s, left behind by a run that was killed", path.parent)
