import io
import logging
import math
import re

import pytest
from rich.console import Console

from nemo_rl.utils import progress as module
from nemo_rl.utils.progress import RunProgress, final_table, format_seconds


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=160)


def test_a_terminal_shows_stage_step_reward_rate_and_time_left() -> None:
    screen = console(terminal=True)
    with RunProgress(10, console=screen) as progress:
        progress.step(3, {"train/reward": 0.73125, "performance/tokens_per_sec_per_gpu": 12431.2})
        with progress.stage("generation"):
            progress._live.refresh()
    text = screen.file.getvalue()
    for part in ("3/10", "generation", "0.7312", "12,431", "left"):
        assert part in text


def test_without_a_terminal_each_step_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    screen = console(terminal=False)
    with caplog.at_level(logging.DEBUG, logger="nemo_rl"), RunProgress(10, console=screen) as progress:
        with progress.stage("generation"):
            pass
        progress.step(1, {"train/reward": 0.5, "train/loss": math.nan, "validation/accuracy": 0.25})
    assert screen.file.getvalue() == ""
    assert "step 1: generation" in caplog.text
    assert "step 1/10  reward 0.5  loss -  validation accuracy 0.25" in caplog.text


def test_stages_nest() -> None:
    progress = RunProgress(1, console=console(terminal=False))
    with progress.stage("outer"):
        with progress.stage("inner"):
            assert progress.stage_name == "inner"
        assert progress.stage_name == "outer"


def test_time_left_counts_only_the_steps_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    progress = RunProgress(20, start_step=10, console=console(terminal=False))
    assert progress.seconds_left() is None
    now = 130.0
    progress.step(13, {})
    assert progress.seconds_left() == pytest.approx(70.0)


def test_final_table_has_first_last_best_and_the_files() -> None:
    history = [{"step": s, "train/reward": r} for s, r in ((1, 0.1), (2, 0.9), (3, math.nan), (4, 0.8))]
    history[0]["validation/accuracy"] = 0.25
    screen = console(terminal=False)
    screen.print(final_table(history, {"metrics": "logs/exp_001/metrics.jsonl", "checkpoint": None}))
    text = screen.file.getvalue()
    row = next(line for line in text.splitlines() if " reward " in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["reward", "0.1", "0.8", "0.9", "2"]
    assert re.search(r"metrics +logs/exp_001/metrics.jsonl", text)
    assert "checkpoint" not in text
    assert "gen_kl_error" not in text


def test_format_seconds() -> None:
    assert [format_seconds(s) for s in (5, 65, 3723)] == ["0:05", "1:05", "1:02:03"]
