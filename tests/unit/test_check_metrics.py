import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from tests.check_metrics import CheckError, Evaluator, check
from tests.json_dump_tb_logs import collect

REPO = Path(__file__).parents[2]
DATA = {
    "train/reward": {"1": 0.1, "2": 0.2, "3": 0.9, "4": 0.8},
    "train/time": {"1": 100.0, "2": 10.0, "3": 12.0, "4": 11.0, "10": 13.0},
    "train/bad": {"1": 1.0, "2": None},
    "train/empty": {},
}


@pytest.mark.parametrize(
    ("expression", "measured"),
    [
        ('max(data["train/reward"]) > 0.35', 0.9),
        ('min(data["train/reward"]) == 0.1', 0.1),
        ('mean(data["train/reward"]) == 0.5', 0.5),
        ('median(data["train/reward"]) == 0.5', 0.5),
        ('data["train/reward"]["4"] > 0.5', 0.8),
        ('data["train/reward"][4] > 0.5', 0.8),
        ('len(data["train/time"]) == 5', 5),
        ('mean(data["train/time"], 2) == 11.5', 11.5),  # steps 2, 3, 4, 10
        ('mean(data["train/time"], range_start=2, range_end=4) == 11', 11),  # steps 2, 3
        ('mean(data["train/time"], -7, 0) == 12', 12),  # the last seven step numbers: 4 and 10
        ('mean(data["train/time"], ignore_top_p=0.2) == 11.5', 11.5),  # drops the 100
        ('ratio_above(data["train/time"], 11.5) == 0.6', 0.6),
        ('ratio_above(data["train/bad"], 1) == 0.5', 0.5),
        ('0.79 < max(data["train/reward"]) < 1.21', 0.9),
    ],
)
def test_expressions_that_hold(expression: str, measured: float) -> None:
    evaluator = Evaluator(DATA)
    assert evaluator.evaluate(expression) is True
    assert evaluator.values == [pytest.approx(measured)]


@pytest.mark.parametrize(
    "expression",
    [
        'max(data["train/reward"]) > 0.95',
        'max(data["train/bad"]) < 100',
        'max(data["train/bad"]) != 3',
        'data["train/bad"]["2"] < 5',
        'min(data["train/reward"]) > 0 and max(data["train/reward"]) < 0.5',
        'not max(data["train/reward"]) > 0.35',
    ],
)
def test_expressions_that_do_not_hold(expression: str) -> None:
    assert Evaluator(DATA).evaluate(expression) is False


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ('max(data["train/rewrad"]) > 0', "no metric 'train/rewrad'"),
        ('data["train/reward"]["20"] > 0', "no step '20'"),
        ('1 > 0 or max(data["nothing"]) > 0', "no metric 'nothing'"),
        ('max(data["train/empty"]) > 0', "no values"),
        ('mean(data["train/reward"], 50) > 0', "no values"),
        ('mean(data["train/reward"], first=1) > 0', "unexpected keyword"),
        ('mean(data["train/reward"], ignore_top_p=1) > 0', "ignore_top_p"),
        ('max(data["train/reward"])', "neither true nor false"),
        ('data["train/reward"] > 0', "not a number"),
        ("max(3) > 0", "wants a metric"),
        ("1 / 0 > 0", "division by zero"),
        ('"a" * 9 > 1', "arithmetic wants numbers"),
        ("1 >", "not an expression"),
        ('__import__("os").system("true") == 0', "not allowed here"),
        ("data.__class__ == 1", "not allowed here"),
        ("(lambda: 1)() == 1", "not allowed here"),
        ("[x for x in data] == 1", "not allowed here"),
        ("2 ** 999999 > 1", "not allowed here"),
        ('open("x") == 1', "not allowed here"),
        ("1 in data", "not a number"),
    ],
)
def test_what_cannot_be_evaluated_says_why(expression: str, reason: str) -> None:
    with pytest.raises(CheckError, match=reason):
        Evaluator(DATA).evaluate(expression)


def test_one_failure_fails_the_whole() -> None:
    assert check(DATA, ['max(data["train/reward"]) > 0'])[1]
    assert not check(DATA, ['max(data["train/reward"]) > 0', 'max(data["x"]) > 0'])[1]


@pytest.mark.parametrize(("bound", "code"), [("0.35", 0), ("0.95", 1)])
def test_the_command_prints_a_table_and_sets_the_exit_status(tmp_path: Path, bound: str, code: int) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(DATA))
    command = [sys.executable, str(REPO / "tests" / "check_metrics.py"), str(path)]
    expression = f'max(data["train/reward"]) > {bound}'
    done = subprocess.run([*command, expression], check=False, capture_output=True, text=True)
    assert done.returncode == code
    assert expression in done.stdout
    assert ("pass" in done.stdout) is (code == 0)


def test_event_files_are_merged_and_the_latest_wins(tmp_path: Path) -> None:
    for folder, points in (("exp_001", {1: 0.25, 2: 0.5, 3: 9.0}), ("exp_002", {3: 0.75, 4: math.nan})):
        with SummaryWriter(str(tmp_path / folder / "tensorboard")) as writer:
            for step, value in points.items():
                writer.add_scalar("train/reward", value, step)
    metrics = collect(tmp_path)
    assert list(metrics["train/reward"]) == ["1", "2", "3", "4"]
    assert [metrics["train/reward"][s] for s in ("1", "2", "3")] == [0.25, 0.5, 0.75]
    assert math.isnan(metrics["train/reward"]["4"])


def test_a_folder_without_events_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no TensorBoard event files"):
        collect(tmp_path)
