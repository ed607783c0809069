"""From groups of rollouts to the padded batch that the trainer takes, rows ordered by group."""

from collections.abc import Sequence

import torch

from nemo_rl.experience.interfaces import Rollout, RolloutGroup
from nemo_rl.policy.interfaces import TrainBatch


def flatten(groups: Sequence[RolloutGroup]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def train_batch(rollouts: Sequence[Rollout], advantages_B: torch.Tensor, sample_mask_B: torch.Tensor) -> TrainBatch:
    """Right-padded batch of all rollouts; B = P * G."""
    longest = max(len(rollout.token_ids) for rollout in rollouts)

    def padded(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
        out = torch.zeros(len(rows), longest, dtype=dtype)
        for row, values in zip(out, rows, strict=True):
            row[: len(values)] = torch.tensor(values, dtype=dtype)
        return out

    return TrainBatch(
        token_ids_BT=padded([r.token_ids for r in rollouts], torch.long),
        lengths_B=torch.tensor([len(r.token_ids) for r in rollouts]),
        loss_mask_BT=padded([r.loss_mask for r in rollouts], torch.bool),
        sample_mask_B=sample_mask_B,
        advantages_B=advantages_B,
        generation_logprobs_BT=padded([r.logprobs for r in rollouts], torch.float32),
    )
