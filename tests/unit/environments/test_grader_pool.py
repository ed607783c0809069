"""Graders that hang, crash or raise are counted by name, and the pool goes on."""

import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_rl.environments.grader_pool import GraderPool, GraderStartError
from nemo_rl.environments.interfaces import GradeStatus

GRADERS = Path(__file__).parent / "graders.py"


@pytest.fixture
def pool():
    pool = GraderPool(f"{GRADERS}:by_command", num_workers=2, timeout_s=1.0)
    yield pool
    pool.close()


def statuses(reports):
    return [report.status for report in reports]


def test_reports_come_back_in_order(pool):
    reports = pool.grade([("sleep 0.3", {"reward": 0.1}), ("", {"reward": 0.2}), ("", {"reward": 0.3})])
    assert [report.reward for report in reports] == [0.1, 0.2, 0.3]


def test_batch_is_graded_side_by_side(pool):
    pool.grade([("sleep 0.2", {})] * 2)  # both processes are up now
    started = time.monotonic()
    pool.grade([("sleep 0.5", {})] * 2)
    assert time.monotonic() - started < 0.95


@pytest.mark.parametrize("hang", ["sleep 60", "spin"])
def test_hang_is_a_timeout_within_its_deadline_and_the_pool_goes_on(pool, hang):
    started = time.monotonic()
    reports = pool.grade([(hang, {}), ("", {}), ("", {})])
    assert time.monotonic() - started < 10
    assert statuses(reports) == [GradeStatus.TIMEOUT, GradeStatus.GRADED, GradeStatus.GRADED]
    assert math.isnan(reports[0].reward)
    assert statuses(pool.grade([("", {})] * 4)) == [GradeStatus.GRADED] * 4


def test_crashed_process_is_replaced(pool):
    reports = pool.grade([("exit 3", {}), ("exit 3", {}), ("exit 3", {})])
    assert statuses(reports) == [GradeStatus.ERROR] * 3
    assert "exit code 3" in reports[0].error
    assert statuses(pool.grade([("", {})] * 3)) == [GradeStatus.GRADED] * 3


def test_exception_is_an_error_with_its_text_and_keeps_the_process():
    pool = GraderPool(f"{GRADERS}:by_command", num_workers=1, timeout_s=5.0)
    before, failed, after = pool.grade([("pid", {}), ("raise no idea", {}), ("pid", {})])
    pool.close()
    assert failed.status is GradeStatus.ERROR
    assert failed.error == "RuntimeError: no idea"
    assert before.answer == after.answer


def test_reward_that_is_not_finite_is_an_error(pool):
    (report,) = pool.grade([("nan", {})])
    assert report.status is GradeStatus.ERROR
    assert "finite" in report.error


def test_grader_may_print(pool):
    assert statuses(pool.grade([("print hello", {})])) == [GradeStatus.GRADED]


def test_close_ends_the_processes():
    pool = GraderPool(f"{GRADERS}:by_command", num_workers=1, timeout_s=1.0)
    (report,) = pool.grade([("pid", {})])
    pool.close()
    assert not Path(f"/proc/{report.answer}").exists()


def test_grader_that_cannot_start_says_why():
    with pytest.raises(GraderStartError, match="defines no 'missing'"):
        GraderPool(f"{GRADERS}:missing", num_workers=1, timeout_s=1.0)


def test_grader_process_does_not_import_torch():
    code = (
        "import sys, nemo_rl.environments.grader_child, nemo_rl.environments.math_verifier;"
        "print([name for name in ('torch', 'transformers', 'ray', 'datasets') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert output.stdout.strip() == "[]"
