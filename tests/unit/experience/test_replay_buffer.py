"""Which groups may begin and which are trained on."""

import pytest

from nemo_rl.data.interfaces import Prompt
from nemo_rl.experience.interfaces import Rollout, RolloutGroup
from nemo_rl.experience.replay_buffer import ReplayBuffer, age
from nemo_rl.generation.interfaces import FinishReason, VersionSpan


def group(group_id: str, *versions: int) -> RolloutGroup:
    """One rollout per version given."""
    prompt = Prompt("p", (), (1, 2), "exact_match", {})
    rollouts = [
        Rollout(
            group_id,
            i,
            prompt,
            [1, 2, 3],
            [False, False, True],
            [0.0] * 3,
            [VersionSpan(2, 3, version)],
            [],
            1.0,
            FinishReason.STOP,
        )
        for i, version in enumerate(versions)
    ]
    return RolloutGroup(group_id, rollouts)


def fill(buffer: ReplayBuffer, names: str, version: int) -> None:
    for name in names:
        buffer.admit(name)
        buffer.add(group(name, version))


def ids(groups: list[RolloutGroup] | None) -> str:
    return "none" if groups is None else "".join(g.group_id for g in groups)


def test_nothing_begins_before_the_first_weights() -> None:
    buffer = ReplayBuffer(groups_per_step=2, max_age=1)
    assert buffer.room == 0
    with pytest.raises(ValueError, match="first weights"):
        buffer.admit("a")


@pytest.mark.parametrize("depth", [1, 4])
def test_room_is_for_the_present_step_and_the_depth(depth: int) -> None:
    buffer = ReplayBuffer(groups_per_step=2, max_age=4)
    buffer.publish(0)
    buffer.depth = depth
    assert buffer.room == 2 * (depth + 1)
    fill(buffer, "abc", version=0)
    assert buffer.room == 2 * (depth + 1) - 3


def test_generation_works_further_ahead_when_training_had_to_wait_and_less_when_it_need_not() -> None:
    buffer = ReplayBuffer(groups_per_step=1, max_age=3)
    buffer.publish(0)
    buffer.waited_for()
    assert buffer.depth == 1  # the first step always waits
    fill(buffer, "ab", version=0)
    buffer.take()
    buffer.publish(1)
    fill(buffer, "c", version=1)
    buffer.take()
    buffer.publish(2)
    buffer.waited_for()
    assert buffer.depth == 1  # a group lay ready: not for want of any
    buffer.take()
    for _ in range(5):
        buffer.waited_for()
    assert buffer.depth == 3
    buffer.publish(3)
    fill(buffer, "def", version=3)
    buffer.take()
    assert buffer.depth == 2


def test_a_group_that_begins_after_the_steps_groups_were_taken_counts_for_the_next_version() -> None:
    buffer = ReplayBuffer(groups_per_step=2, max_age=1)
    buffer.publish(0)
    fill(buffer, "abcd", version=0)
    assert ids(buffer.take()) == "ab"
    assert buffer.room == 0  # c and d are trained on at version 1; another one now would be of age 2 at version 2
    buffer.publish(1)
    assert buffer.room == 2


def test_the_same_version_published_again_admits_no_more() -> None:
    buffer = ReplayBuffer(groups_per_step=1, max_age=1)
    buffer.publish(3)
    fill(buffer, "ab", version=3)
    buffer.take()
    buffer.publish(3)
    assert buffer.room == 0


def test_oldest_version_first_then_order_of_admission() -> None:
    buffer = ReplayBuffer(groups_per_step=3, max_age=2)
    buffer.publish(5)
    for name, version in (("a", 5), ("b", 4), ("c", 5), ("d", 3)):
        buffer.admit(name)
        buffer.add(group(name, version))
    assert ids(buffer.take()) == "dba"


def test_finished_groups_do_not_wait_for_a_straggler_that_is_young_enough() -> None:
    buffer = ReplayBuffer(groups_per_step=1, max_age=1)
    buffer.publish(0)
    buffer.admit("slow")
    fill(buffer, "b", version=0)
    assert ids(buffer.take()) == "b"


def test_a_straggler_that_would_be_too_old_next_time_is_waited_for_and_never_dropped() -> None:
    buffer = ReplayBuffer(groups_per_step=1, max_age=1)
    buffer.publish(0)
    buffer.admit("slow")
    fill(buffer, "b", version=0)
    buffer.take()
    buffer.publish(1)
    fill(buffer, "c", version=1)
    assert buffer.awaited() == ["slow"]
    assert buffer.take() is None
    buffer.add(group("slow", 0, 1))
    assert ids(buffer.take()) == "slow"
    assert not buffer.dropped


@pytest.mark.parametrize("max_age", [1, 2, 5])
def test_under_any_order_of_finishing_nothing_is_dropped_or_older_than_allowed(max_age: int) -> None:
    import random

    rng, per_step = random.Random(max_age), 4
    buffer, begun, trained = ReplayBuffer(per_step, max_age), 0, []
    for version in range(60):
        buffer.publish(version)
        buffer.depth = rng.randint(1, max_age)
        taken = None
        while taken is None:
            while buffer.room:
                buffer.admit(str(begun))
                begun += 1
            if under_way := buffer.in_flight:
                done = rng.choice(under_way)
                buffer.add(group(done, buffer.entries[done].version, version))
            taken = buffer.take()
        assert all(age(g, version) <= max_age for g in taken)
        trained += [g.group_id for g in taken]
    assert not buffer.dropped
    assert len(trained) == len(set(trained)) == 60 * per_step
    assert set(trained) | set(buffer.entries) == {str(i) for i in range(begun)}


def test_what_is_too_old_after_all_is_dropped_and_counted() -> None:
    buffer = ReplayBuffer(groups_per_step=1, max_age=1)
    buffer.publish(5)
    buffer.admit("old")
    buffer.add(group("old", 3))
    fill(buffer, "b", version=5)
    assert ids(buffer.take()) == "b"
    assert buffer.dropped == {"too_old": 1}


def test_a_group_cannot_be_admitted_twice() -> None:
    buffer = ReplayBuffer(groups_per_step=1, max_age=1)
    buffer.publish(0)
    buffer.admit("a")
    with pytest.raises(ValueError, match="already"):
        buffer.admit("a")


def test_age_counts_from_the_oldest_token_of_the_group() -> None:
    assert age(group("a", 7, 5, 6), version=8) == 3
