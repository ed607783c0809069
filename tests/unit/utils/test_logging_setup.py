import io
import logging
from collections.abc import Iterator

import pytest
from rich.console import Console

from nemo_rl.errors import UserError
from nemo_rl.utils.logging_setup import log_level, setup_driver_logging, setup_worker_logging


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    logger = logging.getLogger("nemo_rl")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


def test_level_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEMO_RL_LOG_LEVEL", raising=False)
    assert log_level() == "INFO"
    monkeypatch.setenv("NEMO_RL_LOG_LEVEL", "debug")
    assert log_level() == "DEBUG"
    monkeypatch.setenv("NEMO_RL_LOG_LEVEL", "loud")
    with pytest.raises(UserError, match="NEMO_RL_LOG_LEVEL=LOUD is not a log level"):
        log_level()


def test_a_terminal_gets_rich_lines() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    setup_driver_logging(console)
    logging.getLogger("nemo_rl.policy").info("ready")
    assert "ready" in console.file.getvalue()


def test_workers_write_plain_lines_with_their_name_once(capfd: pytest.CaptureFixture[str]) -> None:
    setup_worker_logging("policy-0")
    setup_worker_logging("policy-0")
    logging.getLogger("nemo_rl.policy").info("ready")
    error = capfd.readouterr().err
    assert error.count("INFO [policy-0] nemo_rl.policy: ready\n") == 1
