import math

import pytest
import torch

from nemo_rl.algorithms.advantages import group_advantages
from nemo_rl.algorithms.rollout_metrics import advantage_metrics, rollout_metrics
from nemo_rl.data.interfaces import Prompt
from nemo_rl.environments.interfaces import GradeStatus
from nemo_rl.experience.interfaces import Rollout, RolloutGroup
from nemo_rl.generation.interfaces import FinishReason, VersionSpan

PROMPT = Prompt(prompt_id="p:0", messages=(), token_ids=(1, 2), env_name="math", metadata={})


def rollout(group: str, reward: float, generated: int = 3, **fields) -> Rollout:
    mask = [False] * 2 + [True] * generated
    settings = {"finish_reason": FinishReason.STOP, **fields}
    return Rollout(
        group_id=group,
        sample_index=0,
        prompt=PROMPT,
        token_ids=[1] * len(mask),
        loss_mask=mask,
        logprobs=[0.0] * len(mask),
        version_spans=[VersionSpan(0, len(mask), 0)],
        messages=[],
        reward=reward,
        **settings,
    )


def groups(**rewards: list[float]) -> list[RolloutGroup]:
    return [RolloutGroup(name, [rollout(name, reward) for reward in values]) for name, values in rewards.items()]


def test_lengths_endings_and_turns():
    members = [
        rollout("a", 1.0, generated=2),
        rollout("a", 0.0, generated=6, finish_reason=FinishReason.LENGTH, turns=3),
        rollout("a", 0.0, generated=1, finish_reason=FinishReason.ABORT),
        rollout("a", 1.0, generated=3),
    ]
    metrics = rollout_metrics([RolloutGroup("a", members)])
    assert metrics["reward"] == 0.5
    assert metrics["mean_prompt_length"] == 2.0
    assert metrics["mean_gen_tokens_per_sample"] == 3.0
    assert metrics["max_gen_tokens_per_sample"] == 6.0
    assert metrics["mean_total_tokens_per_sample"] == 5.0
    assert metrics["total_num_tokens"] == 20.0
    assert metrics["truncation_rate"] == 0.25
    assert metrics["natural_termination_rate"] == 0.5
    assert metrics["avg_turns_per_sample"] == 1.5
    assert metrics["max_turns_per_sample"] == 3.0


def test_failed_grades_are_counted_by_reason_and_stay_out_of_the_reward():
    members = [
        rollout("a", 1.0),
        rollout("a", 0.0),
        rollout("a", math.nan, grade_status=GradeStatus.TIMEOUT),
        rollout("a", math.nan, grade_status=GradeStatus.ERROR),
        rollout("a", math.nan, grade_status=GradeStatus.ERROR),
    ]
    metrics = rollout_metrics([RolloutGroup("a", members)])
    assert metrics["reward"] == 0.5
    assert metrics["grading/timeout"] == 1.0
    assert metrics["grading/error"] == 2.0


def test_share_of_groups_that_are_all_wrong_all_right_or_mixed():
    metrics = rollout_metrics(groups(a=[0, 0], b=[1, 1], c=[1, 0], d=[0, math.nan], e=[math.nan, math.nan]))
    assert metrics["baseline_reward/pct_0"] == 50.0
    assert metrics["baseline_reward/pct_1"] == 25.0
    assert metrics["baseline_reward/pct_mixed"] == 25.0


def test_without_any_grade_the_reward_is_nan_and_group_outcomes_are_absent():
    metrics = rollout_metrics(groups(a=[math.nan]))
    assert math.isnan(metrics["reward"])
    assert "baseline_reward/pct_0" not in metrics


def test_no_rollouts_at_all_is_an_error():
    with pytest.raises(ValueError, match="no rollouts"):
        rollout_metrics([])


def test_advantages_are_described_over_the_samples_that_enter_the_loss():
    rewards = torch.tensor([1.0, 0.0, math.nan, 1.0, 1.0])
    result = group_advantages(rewards, ["a"] * 5, leave_one_out=False, normalize=False)
    metrics = advantage_metrics(result, torch.tensor([True, True, True, True, False]))
    assert metrics == pytest.approx(
        {"advantages/mean": -1 / 12, "advantages/max": 0.25, "advantages/min": -0.75, "num_valid_samples": 3.0}
    )


def test_advantages_of_nothing_are_zero():
    result = group_advantages(torch.tensor([math.nan]), ["a"], leave_one_out=False, normalize=False)
    assert set(advantage_metrics(result, torch.tensor([True])).values()) == {0.0}
