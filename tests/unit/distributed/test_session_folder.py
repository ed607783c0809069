"""Session folders go with their run: at its end, or when the next run begins after a kill."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nemo_rl.distributed.session_folder import remove_abandoned, session_folder

RUN = """
import time
from nemo_rl.distributed.session_folder import session_folder
with session_folder() as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def failing_run(parent):
    with session_folder() as folder:
        (folder / "session").mkdir()
        assert folder.parent == parent
        raise LookupError


def test_folder_is_gone_after_a_run_that_failed(tmp_path):
    with pytest.raises(LookupError):
        failing_run(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folder_of_a_killed_run_is_removed_and_that_of_a_live_one_is_not(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    run = subprocess.Popen([sys.executable, "-c", RUN], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().strip())
        (folder / "session").mkdir()
        remove_abandoned()
        assert (folder / "session").is_dir(), "its run is alive"
        run.send_signal(signal.SIGKILL)
        run.wait()
        remove_abandoned()
        assert not folder.exists()
    finally:
        run.kill()


def test_folder_without_a_lock_is_left_alone(tmp_path):
    (tmp_path / "nrl-something").mkdir()
    remove_abandoned()
    assert (tmp_path / "nrl-something").is_dir()
