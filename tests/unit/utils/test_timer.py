import threading
import time

import pytest

from nemo_rl.utils.timer import Timer


def test_sections_add_up_and_nest() -> None:
    timer = Timer()
    for _ in range(2):
        with timer("generation"):
            time.sleep(0.01)
    with timer("training"), timer("forward"):
        time.sleep(0.01)
    seconds = timer.seconds()
    assert set(seconds) == {"generation", "training", "training/forward", "total_step_time"}
    assert 0.02 <= seconds["generation"] < 0.2
    assert seconds["training"] >= seconds["training/forward"] >= 0.01
    assert seconds["total_step_time"] >= seconds["generation"] + seconds["training"]


def test_reset_begins_a_new_step() -> None:
    timer = Timer()
    timer.add("generation", 5.0)
    timer.reset()
    assert set(timer.seconds()) == {"total_step_time"}


def test_time_counts_when_the_section_raises_and_nesting_recovers() -> None:
    timer = Timer()
    with pytest.raises(RuntimeError), timer("outer"), timer("inner"):
        raise RuntimeError
    with timer("next"):
        pass
    assert {"outer", "outer/inner", "next"} < set(timer.seconds())


def test_threads_do_not_nest_into_each_other() -> None:
    timer = Timer()

    def work() -> None:
        with timer("collector"):
            pass

    with timer("training"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "collector" in timer.seconds()


def test_metrics_have_the_dashboard_names() -> None:
    timer = Timer()
    timer.add("generation", 2.0)
    assert timer.metrics()["timing/train/generation"] == 2.0
    assert "timing/train/total_step_time" in timer.metrics()
