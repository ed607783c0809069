import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nemo_rl.utils.jsonio import write_jsonl
from nemo_rl.utils.plots import plot_run, series, step_time_split

REPO = Path(__file__).parents[3]


def history(steps: int) -> list[dict[str, float]]:
    rng = np.random.default_rng(0)
    lines = []
    for step in range(1, steps + 1):
        line = {
            "step": step,
            "train/reward": 0.9 - 0.8 * math.exp(-step / 15) + 0.03 * rng.normal(),
            "train/gen_kl_error": 1e-4 * math.exp(0.5 * rng.normal()),
            "train/token_mult_prob_error": 1.01 + 0.003 * abs(rng.normal()),
            "timing/train/generation": 4 + 0.3 * rng.normal(),
            "timing/train/policy_training": 2.0,
            "timing/train/policy_training/forward": 1.0,
            "timing/train/policy_and_reference_logprobs": 1.0,
            "timing/train/weight_sync": 0.4,
            "timing/train/total_step_time": 8.5,
        }
        if step % 10 == 0:
            line["validation/accuracy"] = 0.9 - 0.7 * math.exp(-step / 15)
            line["timing/train/validation"] = 3.0
            line["timing/train/total_step_time"] = 11.5
        lines.append(line)
    return lines


def test_series_leaves_out_what_is_absent_or_not_a_number() -> None:
    lines = [
        {"step": 1, "m": 1.0},
        {"step": 2},
        {"step": 3, "m": None},
        {"step": 4, "m": math.nan},
        {"step": 5, "m": 2},
    ]
    steps, values = series(lines, "m")
    assert (steps.tolist(), values.tolist()) == ([1, 5], [1, 2])


def test_step_time_split_fills_up_to_the_total_without_counting_nested_sections() -> None:
    steps, split = step_time_split(history(20))
    assert list(split)[:2] == ["generation", "policy_training"]
    assert "policy_training/forward" not in split
    totals = sum(split.values())
    assert totals.tolist() == pytest.approx([11.5 if step % 10 == 0 else 8.5 for step in steps])


@pytest.mark.parametrize("steps", [0, 1, 2, 300])
def test_any_length_of_run_makes_a_picture(tmp_path: Path, steps: int) -> None:
    path = plot_run(history(steps), tmp_path / "run.png", title="a run")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_example_draws_a_run_directory(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "metrics.jsonl", history(5))
    command = [sys.executable, str(REPO / "examples" / "plot_run.py")]
    subprocess.run([*command, str(tmp_path)], check=True, cwd=REPO)
    assert (tmp_path / "run.png").stat().st_size > 10_000
    done = subprocess.run([*command, str(tmp_path / "none")], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "has no metrics.jsonl" in done.stderr
