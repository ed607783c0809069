"""Graders that hang, crash or raise are counted by name, and the pool goes on."""

import contextlib
import math
import os
import signal
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


def pids_of(command):
    """Of live processes; a zombie has no command line."""
    wanted = "\0".join(command.split()).encode() + b"\0"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [int(path.parent.name)] if path.read_bytes() == wanted else []
    return found


def wait_until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def sleep_command():
    """A command line that no other process has."""
    command = f"sleep 600.{os.getpid()}"
    yield command
    for pid in pids_of(command):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def driver(sleep_command):
    """A process whose pool has one grader, which hangs in a process of its own."""
    code = (
        "from nemo_rl.environments.grader_pool import GraderPool\n"
        f"GraderPool({f'{GRADERS}:by_command'!r}, 1, timeout_s=60.0).grade([({f'run {sleep_command}'!r}, {{}})])"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: pids_of(sleep_command), timeout_s=60.0)
    yield process
    process.kill()
    process.wait()


def state_and_parent(pid):
    state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return state, int(parent)


def is_running(pid):
    return Path(f"/proc/{pid}").exists() and state_and_parent(pid)[0] != "Z"


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


def test_hung_child_of_a_grader_ends_with_it(pool, sleep_command):
    assert statuses(pool.grade([(f"run {sleep_command}", {})])) == [GradeStatus.TIMEOUT]
    wait_until(lambda: not pids_of(sleep_command))


def test_child_of_a_grader_that_crashed_ends_with_it(pool, sleep_command):
    assert statuses(pool.grade([(f"start_and_exit {sleep_command}", {})])) == [GradeStatus.ERROR]
    wait_until(lambda: not pids_of(sleep_command))


def test_close_ends_what_a_reward_function_left_running(sleep_command):
    pool = GraderPool(f"{GRADERS}:by_command", num_workers=1, timeout_s=5.0)
    assert statuses(pool.grade([(f"start {sleep_command}", {})])) == [GradeStatus.GRADED]
    assert pids_of(sleep_command)
    pool.close()
    wait_until(lambda: not pids_of(sleep_command))


def test_idle_grader_ends_when_its_driver_dies():
    code = (
        "import os, signal\n"
        "from nemo_rl.environments.grader_pool import GraderPool\n"
        f"pool = GraderPool({f'{GRADERS}:by_command'!r}, 1, timeout_s=5.0)\n"
        "print(pool.grade([('pid', {})])[0].answer, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    driver = subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.PIPE, text=True, timeout=60)
    wait_until(lambda: not is_running(int(driver.stdout)))


def test_alarm_of_a_grader_whose_driver_is_dead_ends_its_children_too(driver, sleep_command):
    _, grader = state_and_parent(pids_of(sleep_command)[0])
    driver.kill()
    os.kill(grader, signal.SIGALRM)
    wait_until(lambda: not pids_of(sleep_command))


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
