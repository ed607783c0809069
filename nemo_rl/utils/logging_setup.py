"""One log format: rich on the driver's terminal, plain lines in workers and files."""

import logging
import os
import sys

from rich.console import Console
from rich.logging import RichHandler

from nemo_rl.errors import UserError

LEVEL_VARIABLE = "NEMO_RL_LOG_LEVEL"
_PLAIN_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def log_level() -> str:
    """The level that NEMO_RL_LOG_LEVEL names (INFO if unset)."""
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    if level not in _LEVELS:
        raise UserError(f"{LEVEL_VARIABLE}={level} is not a log level: choose one of {', '.join(_LEVELS)}")
    return level


def setup_driver_logging(console: Console | None = None) -> None:
    """Rich log lines on standard error. Give the progress display's console, so that lines go above the display."""
    console = console or Console(stderr=True)
    if console.is_terminal:
        handler: logging.Handler = RichHandler(console=console, show_path=False, log_time_format="%H:%M:%S")
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        # rich would fold lines at 80 columns, which makes a log file hard to search
        handler = _plain_handler()
    _install(handler)


def setup_worker_logging(name: str) -> None:
    """Plain lines on standard error, each naming the worker ("policy-0"): Ray forwards them or files them."""
    handler = _plain_handler(f"%(asctime)s %(levelname)s [{name}] %(name)s: %(message)s")
    _install(handler)


def _plain_handler(line_format: str = _PLAIN_FORMAT) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(line_format, datefmt="%H:%M:%S"))
    return handler


def _install(handler: logging.Handler) -> None:
    """Replaces the handler of the package's logger; other libraries keep theirs. Safe to call again."""
    logger = logging.getLogger("nemo_rl")
    logger.handlers[:] = [handler]
    logger.setLevel(log_level())
    logger.propagate = False
