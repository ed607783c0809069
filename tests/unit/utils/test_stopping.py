import os
import signal
import time

import psutil
import pytest

from nemo_rl.utils.stopping import TerminationFlag, TimeoutChecker, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("00:00:00:10", 10), ("00:03:45:00", 13500), ("1:00:00:01", 86401), ("12:23:59:59", 1123199)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "3:45:00", "00:24:00:00", "00:00:60:00", "1d", "00:-1:00:00"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="DD:HH:MM:SS"):
        parse_duration(text)


def test_time_counts_from_the_start_of_the_process() -> None:
    age = int(time.time() - psutil.Process().create_time())
    hours, minutes, seconds = (age + 30) // 3600, (age + 30) // 60 % 60, (age + 30) % 60
    checker = TimeoutChecker(f"00:{hours:02d}:{minutes:02d}:{seconds:02d}")
    assert not checker.must_save()
    checker.mark_step(16.0)  # and as much for the save: more than the 30 seconds left
    assert checker.must_save()


def test_no_deadline_never_asks_for_a_save() -> None:
    checker = TimeoutChecker(None)
    checker.mark_step(1e9)
    assert not checker.must_save()


@pytest.mark.parametrize(
    ("elapsed", "save_seconds", "expected"),
    [
        (700, 50, False),  # 300 s left, 250 s for the longest step and a save
        (760, 50, True),
        (590, None, False),  # no save seen yet: a save is expected to take as long as a step, 400 s in all
        (610, None, True),
        (2000, 50, True),
    ],
)
def test_a_save_is_due_when_one_more_step_and_a_save_would_not_fit(
    elapsed: float, save_seconds: float | None, expected: bool
) -> None:
    checker = TimeoutChecker("00:00:16:40", start=time.monotonic() - elapsed)  # 1,000 s
    for seconds in (100, 200, 150):
        checker.mark_step(seconds)
    if save_seconds is not None:
        checker.mark_save(save_seconds)
    assert checker.must_save() is expected


def test_first_sigterm_sets_the_flag_and_the_second_acts_as_before() -> None:
    received: list[int] = []
    original = signal.signal(signal.SIGTERM, lambda signum, frame: received.append(signum))
    try:
        with TerminationFlag() as termination:
            assert not termination
            os.kill(os.getpid(), signal.SIGTERM)
            assert termination
            assert received == []
            os.kill(os.getpid(), signal.SIGTERM)
            assert received == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(received) == 2
    finally:
        signal.signal(signal.SIGTERM, original)


def test_the_old_handler_is_back_after_an_exception() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError), TerminationFlag():
        raise RuntimeError
    assert signal.getsignal(signal.SIGTERM) == before
