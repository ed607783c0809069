"""The converters' command lines: what is wrong is one sentence, and nothing is made."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "examples" / "configs" / "grpo_tiny_cpu.yaml"


@pytest.mark.parametrize(("script", "source", "options", "message"), [
    ("checkpoint_to_hf", "nowhere", [], "nowhere is not a directory"),
    ("checkpoint_to_peft", "unfinished", [], "is not a checkpoint of nemo_rl, or was never finished"),
    ("peft_to_checkpoint", "nowhere", ["--config", str(CONFIG)], "nowhere is not a PEFT adapter"),
    ("peft_to_checkpoint", "nowhere", ["--config", "nothing.yaml"], "there is no such configuration file"),
])  # fmt: skip
def test_wrong_input_is_one_sentence(
    tmp_path: Path, script: str, source: str, options: list[str], message: str
) -> None:
    (tmp_path / "unfinished").mkdir()
    command = [sys.executable, str(ROOT / "examples" / "converters" / f"{script}.py"), source, "out", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message in line and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["unfinished"]
