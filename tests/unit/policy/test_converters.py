"""The converters' command lines: what is wrong is one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

CONVERTERS = Path(__file__).parents[3] / "examples" / "converters"


@pytest.mark.parametrize(("make", "message"), [
    (False, "is not a directory"), (True, "is not a checkpoint of nemo_rl, or was never finished"),
])  # fmt: skip
def test_folder_that_is_no_checkpoint_is_one_sentence(tmp_path: Path, make: bool, message: str) -> None:
    source = tmp_path / "step_3"
    if make:
        source.mkdir()
    command = [sys.executable, str(CONVERTERS / "checkpoint_to_hf.py"), str(source), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message in line and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
