import math

import pytest
import torch

from nemo_rl.algorithms.advantages import GroupAdvantages, group_advantages

NAN, INF = math.nan, math.inf


def advantages(rewards, ids=None, leave_one_out=False, normalize=False) -> GroupAdvantages:
    ids = ids or ["g"] * len(rewards)
    return group_advantages(torch.tensor(rewards), ids, leave_one_out=leave_one_out, normalize=normalize)


def assert_rows(actual: torch.Tensor, expected: list[float]) -> None:
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("leave_one_out", "normalize", "hit", "miss"),
    [
        pytest.param(False, True, 1.2076, -0.7246, id="grpo"),
        pytest.param(False, False, 0.625, -0.375, id="dr_grpo"),
        pytest.param(True, False, 0.7143, -0.4286, id="rloo"),
        pytest.param(True, True, 1.3801, -0.8281, id="leave_one_out_over_std_of_whole_group"),
    ],
)
def test_three_hits_of_eight(leave_one_out, normalize, hit, miss):
    result = advantages([1.0, 1, 1, 0, 0, 0, 0, 0], leave_one_out=leave_one_out, normalize=normalize)
    assert_rows(result.advantages_B, [hit] * 3 + [miss] * 5)
    assert_rows(result.std_B, [0.5175] * 8)
    assert_rows(result.baseline_B, [2 / 7] * 3 + [3 / 7] * 5 if leave_one_out else [0.375] * 8)


def test_only_success_of_a_group_is_normalised_like_its_siblings():
    result = advantages([1.0, 0, 0, 0], leave_one_out=True, normalize=True)
    assert_rows(result.advantages_B, [2.0, -2 / 3, -2 / 3, -2 / 3])


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("value", [1.0, 0.0, -3.0, 0.1, 1e30])
def test_group_of_equal_rewards_gets_exactly_zero_advantage(value, leave_one_out, normalize):
    result = advantages([value] * 7, leave_one_out=leave_one_out, normalize=normalize)
    assert result.advantages_B.tolist() == [0.0] * 7
    assert result.std_B.tolist() == [0.0] * 7


def test_equal_float64_rewards_get_exactly_zero_too():
    rewards = torch.full((1000,), 0.1, dtype=torch.float64)
    result = group_advantages(rewards, ["g"] * 1000, leave_one_out=True, normalize=True)
    assert result.advantages_B.abs().max() == 0


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
@pytest.mark.parametrize("row", [0, 1, 3])
def test_non_finite_reward_leaves_the_statistics_of_its_group(broken, row):
    rewards = [1.0, 0.0, 1.0]
    rewards.insert(row, broken)
    result = advantages(rewards)
    expected = [1 / 3, -2 / 3, 1 / 3]
    expected.insert(row, 0.0)
    assert_rows(result.advantages_B, expected)
    assert result.valid_B.tolist() == [i != row for i in range(4)]
    assert_rows(result.baseline_B, [0.0 if i == row else 2 / 3 for i in range(4)])


def test_non_finite_reward_with_leave_one_out_counts_the_other_finite_ones():
    result = advantages([1.0, NAN, 0.0, 1.0], leave_one_out=True)
    assert_rows(result.advantages_B, [0.5, 0.0, -1.0, 0.5])


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("rewards", [[2.0], [NAN, 2.0, NAN], [NAN, INF, -INF], [NAN]])
def test_fewer_than_two_finite_rewards_get_zero(rewards, leave_one_out, normalize):
    result = advantages(rewards, leave_one_out=leave_one_out, normalize=normalize)
    assert result.advantages_B.tolist() == [0.0] * len(rewards)
    assert result.baseline_B.tolist() == [0.0] * len(rewards)


def test_two_nans_of_four_leave_a_pair():
    assert_rows(advantages([1.0, NAN, NAN, 0.0]).advantages_B, [0.5, 0, 0, -0.5])


def test_groups_may_be_interleaved_and_uneven():
    result = advantages([1.0, 5.0, 0.0, 7.0, 0.5], ["a", "b", "a", "b", "a"])
    assert_rows(result.advantages_B, [0.5, -1.0, -0.5, 1.0, 0.0])


def test_permuting_the_batch_permutes_the_advantages():
    rewards, ids = torch.rand(12), [f"g{i % 4}" for i in range(12)]
    order = torch.randperm(12)
    straight = group_advantages(rewards, ids, leave_one_out=True, normalize=True)
    shuffled = group_advantages(rewards[order], [ids[i] for i in order], leave_one_out=True, normalize=True)
    torch.testing.assert_close(shuffled.advantages_B, straight.advantages_B[order])


def test_broken_group_does_not_touch_its_neighbours():
    result = advantages([NAN, NAN, 1.0, 0.0], ["a", "a", "b", "b"], normalize=True)
    assert_rows(result.advantages_B, [0, 0, 0.7071, -0.7071])


def test_number_of_ids_must_match():
    with pytest.raises(ValueError, match="3 rewards but 2 group ids"):
        group_advantages(torch.zeros(3), ["a", "a"], leave_one_out=False, normalize=False)


def test_empty_batch():
    assert group_advantages(torch.zeros(0), [], leave_one_out=True, normalize=True).advantages_B.shape == (0,)
