"""What a batch of rollouts looks like, for the logger: rewards, lengths, endings and grading failures."""

from collections.abc import Sequence
from itertools import groupby
from math import isfinite

import torch
from torch import Tensor

from nemo_rl.algorithms.advantages import GroupAdvantages
from nemo_rl.environments.interfaces import GradeStatus
from nemo_rl.experience.interfaces import Rollout, RolloutGroup
from nemo_rl.generation.interfaces import FinishReason


def rollout_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """Metrics of one step's rollouts. `reward` is over graded rollouts only, and NaN if there is none."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if not rollouts:
        raise ValueError("there are no rollouts to describe")
    generated = [rollout.generated_length for rollout in rollouts]
    turns = [rollout.turns for rollout in rollouts]
    return {
        "reward": _mean([rollout.reward for rollout in rollouts if isfinite(rollout.reward)]),
        "mean_prompt_length": _mean([rollout.prompt_length for rollout in rollouts]),
        "mean_gen_tokens_per_sample": _mean(generated),
        "max_gen_tokens_per_sample": float(max(generated)),
        "mean_total_tokens_per_sample": _mean([len(rollout.token_ids) for rollout in rollouts]),
        "total_num_tokens": float(sum(len(rollout.token_ids) for rollout in rollouts)),
        "truncation_rate": _mean([rollout.finish_reason is FinishReason.LENGTH for rollout in rollouts]),
        "natural_termination_rate": _mean([rollout.finish_reason is FinishReason.STOP for rollout in rollouts]),
        "avg_turns_per_sample": _mean(turns),
        "max_turns_per_sample": float(max(turns)),
        **_grading_failures(rollouts),
        **_group_outcomes(rollouts),
    }


def advantage_metrics(result: GroupAdvantages, sample_mask_B: Tensor) -> dict[str, float]:
    """Advantages over the rollouts that enter the loss, and how many those are; 0 where there is none."""
    used = result.advantages_B[result.valid_B & sample_mask_B.bool()]
    bounded = used if used.numel() else torch.zeros(1)
    return {
        "advantages/mean": float(bounded.mean()),
        "advantages/max": float(bounded.max()),
        "advantages/min": float(bounded.min()),
        "num_valid_samples": float(used.numel()),
    }


def _grading_failures(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """How many rollouts have no grade, by reason: grading/timeout, grading/error."""
    failures = [status for status in GradeStatus if status is not GradeStatus.GRADED]
    return {f"grading/{s.value}": float(sum(rollout.grade_status is s for rollout in rollouts)) for s in failures}


def _group_outcomes(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Percent of groups whose mean reward is 0, 1, or anything else; groups without a finite reward do not count."""
    ordered = sorted((rollout.group_id, rollout.reward) for rollout in rollouts if isfinite(rollout.reward))
    baselines = [_mean([reward for _, reward in members]) for _, members in groupby(ordered, key=lambda pair: pair[0])]
    if not baselines:
        return {}
    percent_0 = 100 * _mean([baseline == 0 for baseline in baselines])
    percent_1 = 100 * _mean([baseline == 1 for baseline in baselines])
    return {
        "baseline_reward/pct_0": percent_0,
        "baseline_reward/pct_1": percent_1,
        "baseline_reward/pct_mixed": 100 - percent_0 - percent_1,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
