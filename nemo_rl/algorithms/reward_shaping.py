"""Changes to rewards, and the choice of rollouts that count, before advantages and loss."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nemo_rl.generation.interfaces import FinishReason


def overlong_penalty(lengths_B: Tensor, max_length: int, buffer_length: int, penalty: float) -> Tensor:
    """What to add to the reward of a long response: 0 down to -penalty; float32 [B].

    DAPO's soft overlong punishment (arXiv:2503.14476): 0 up to max_length - buffer_length tokens, then linear down to
    -penalty at max_length, constant beyond.
    """
    if not 0 < buffer_length <= max_length:
        raise ValueError(f"the overlong buffer ({buffer_length}) must lie in 1..{max_length}, the response length")
    over_B = lengths_B.float() - (max_length - buffer_length)
    return -penalty * (over_B / buffer_length).clamp(0.0, 1.0)


def scale_rewards(
    rewards_B: Tensor, source_min: float, source_max: float, target_min: float, target_max: float
) -> Tensor:
    """Rewards clamped to the source range and mapped linearly onto the target range; NaN stays NaN; [B]."""
    if not source_min < source_max:
        raise ValueError(f"the source range is empty: {source_min} .. {source_max}")
    fraction_B = (rewards_B.clamp(source_min, source_max) - source_min) / (source_max - source_min)
    return target_min + fraction_B * (target_max - target_min)


def penalize_truncated(rewards_B: Tensor, finish_reasons: Sequence[FinishReason], coefficient: float) -> Tensor:
    """Rewards of truncated responses times `coefficient` (0 takes the reward away, 1 changes nothing); [B]."""
    return torch.where(finished_mask(finish_reasons).to(rewards_B.device), rewards_B, rewards_B * coefficient)


def finished_mask(finish_reasons: Sequence[FinishReason]) -> Tensor:
    """False for truncated responses; bool [B]. The engine's finish reason decides, not the presence of an end token:
    a response that ended in a stop string has none and is complete.

    Overlong filtering multiplies this into the sample mask only: the reward stays in its group's statistics.
    """
    return torch.tensor([reason is not FinishReason.LENGTH for reason in finish_reasons], dtype=torch.bool)
