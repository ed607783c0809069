import math

import pytest
import torch

from nemo_rl.algorithms.advantages import group_advantages
from nemo_rl.algorithms.reward_shaping import finished_mask, overlong_penalty, penalize_truncated, scale_rewards
from nemo_rl.generation.interfaces import FinishReason

STOP, LENGTH, ABORT = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT


def test_overlong_penalty_is_a_ramp_then_constant():
    lengths = torch.tensor([0, 80, 81, 90, 100, 101, 10_000])
    penalties = overlong_penalty(lengths, max_length=100, buffer_length=20, penalty=1.0)
    torch.testing.assert_close(penalties, torch.tensor([0, 0, -0.05, -0.5, -1, -1, -1]))


def test_overlong_penalty_scales():
    assert overlong_penalty(torch.tensor([90]), 100, 20, penalty=0.4).item() == pytest.approx(-0.2)


@pytest.mark.parametrize("buffer", [0, -1, 101])
def test_overlong_buffer_must_fit_the_response(buffer):
    with pytest.raises(ValueError, match="overlong buffer"):
        overlong_penalty(torch.tensor([1]), 100, buffer, 1.0)


def test_truncation_is_a_finish_reason():
    assert finished_mask([STOP, LENGTH, ABORT]).tolist() == [True, False, True]


def test_filtered_rollout_still_counts_in_its_groups_statistics():
    keep = finished_mask([STOP, LENGTH])
    result = group_advantages(torch.tensor([1.0, 0.0]), ["g", "g"], leave_one_out=False, normalize=False)
    assert keep.tolist() == [True, False]
    assert result.advantages_B.tolist() == [0.5, -0.5]


def test_truncated_reward_is_scaled():
    rewards = penalize_truncated(torch.tensor([1.0, 1.0, math.nan]), [STOP, LENGTH, STOP], 0.25)
    assert rewards[:2].tolist() == [1.0, 0.25]
    assert math.isnan(rewards[2])


def test_scaling_clamps_and_keeps_nan():
    scaled = scale_rewards(torch.tensor([-5.0, 0.5, 5.0, math.nan]), 0.0, 1.0, -1.0, 1.0)
    assert scaled[:3].tolist() == [-1.0, 0.0, 1.0]
    assert math.isnan(scaled[3])


def test_scaling_needs_a_source_range():
    with pytest.raises(ValueError, match="source range is empty"):
        scale_rewards(torch.zeros(1), 1.0, 1.0, 0.0, 1.0)
