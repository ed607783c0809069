"""Advantages of rollouts relative to the other rollouts of the same prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GroupAdvantages:
    """What B rollouts are worth compared with their groups. `valid_B` False: the reward was not finite.

    `baseline_B` is what was subtracted and `std_B` the sample standard deviation of the rollout's group. Both are 0
    for invalid rows and for groups of fewer than two finite rewards.
    """

    advantages_B: Tensor
    baseline_B: Tensor
    std_B: Tensor
    valid_B: Tensor


def group_advantages(
    rewards_B: Tensor, group_ids: Sequence[str], *, leave_one_out: bool, normalize: bool, eps: float = 1e-6
) -> GroupAdvantages:
    """Advantage of each rollout against the finite rewards of its own group; float32 [B].

    GRPO (arXiv:2402.03300):  A_i = (r_i - mean(r)) / (std(r) + eps), std with n - 1 in the denominator.
    Dr. GRPO (arXiv:2503.20783) is `normalize=False`; RLOO (arXiv:2402.14740) is `leave_one_out=True,
    normalize=False`: the mean is then taken over the other n - 1 rewards, which is n/(n-1) times Dr. GRPO.

    The standard deviation is always that of the whole group, also with a leave-one-out baseline. NeMo-RL leaves the
    sample out of the deviation too; that deviation is zero for the only success of a group, whose advantage is
    then left undivided while its siblings' are not. With ours, the four combinations differ by a factor per group.

    Groups are known by their ids: members may lie anywhere in the batch, and equal prompts under two ids are two
    groups. A non-finite reward is left out of the statistics and gets advantage 0. A group of equal rewards, or with
    fewer than two finite ones, gets advantages of exactly 0.
    """
    if len(group_ids) != rewards_B.numel():
        raise ValueError(f"{rewards_B.numel()} rewards but {len(group_ids)} group ids")
    numbers = {group_id: number for number, group_id in enumerate(dict.fromkeys(group_ids))}
    group_B = torch.tensor([numbers[group_id] for group_id in group_ids], dtype=torch.long, device=rewards_B.device)
    valid_B = torch.isfinite(rewards_B.float())
    # Sums of float32 numbers in float64 are exact here, and so is the mean of equal ones: their deviation is exactly 0.
    # In float32 the mean of seven 0.1s leaves a residue that the division by its own deviation makes large.
    rewards = torch.where(valid_B, rewards_B.float(), 0.0).double()

    def total_of_group(values_B: Tensor) -> Tensor:
        return rewards.new_zeros(len(numbers)).index_add(0, group_B, values_B)[group_B]

    count_B = total_of_group(valid_B.double())
    deviation_B = torch.where(valid_B, rewards - total_of_group(rewards) / count_B.clamp(min=1), 0.0)
    std_B = (total_of_group(deviation_B.square()) / (count_B - 1).clamp(min=1)).sqrt()
    comparable_B = valid_B & (count_B >= 2)

    centred_B = deviation_B * count_B / (count_B - 1).clamp(min=1) if leave_one_out else deviation_B
    advantages_B = centred_B / (std_B + eps) if normalize else centred_B
    return GroupAdvantages(
        advantages_B=torch.where(comparable_B, advantages_B, 0.0).float(),
        baseline_B=torch.where(comparable_B, rewards - centred_B, 0.0).float(),
        std_B=torch.where(comparable_B, std_B, 0.0).float(),
        valid_B=valid_B,
    )
