"""The ratio between the policy that learns and the one before the update, and PPO's clipped objective."""

import torch
from torch import Tensor

from nemo_rl.algorithms.masking import masked_fill_zero, masked_mean

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here before exp: e^20 is far outside every clip range, and its gradient is still finite."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio) with the exponent cut to +-20, so that value and gradient stay finite in float32."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def policy_ratio(logprobs_BT: Tensor, previous_BT: Tensor, mask_BT: Tensor, sequence_level: bool) -> Tensor:
    """pi(token) / pi_previous(token), [B, T]; 1 where the mask is False.

    At sequence level (GSPO, arXiv:2507.18071) every token of a row has the row's geometric mean,
    exp(mean over the row's valid tokens of log pi - log pi_previous).
    """
    log_ratio_BT = masked_fill_zero(logprobs_BT - previous_BT, mask_BT)
    if sequence_level:
        log_ratio_BT = masked_mean(log_ratio_BT, mask_BT, dim=-1)[:, None].expand_as(log_ratio_BT)
    return bounded_exp(log_ratio_BT)


def clip_ratio(ratio: Tensor, clip_min: float, clip_max: float) -> Tensor:
    """The ratio held in [1 - clip_min, 1 + clip_max]; unequal sides are DAPO's clip-higher (arXiv:2503.14476)."""
    return ratio.clamp(1 - clip_min, 1 + clip_max)


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_min: float, clip_max: float, dual_clip: float | None
) -> Tensor:
    """PPO's per-token loss (arXiv:1707.06347), -min(ratio A, clip(ratio) A); shapes broadcast.

    Dual clip (arXiv:1912.09729): where A < 0 the loss is at most -dual_clip A, so that one token whose ratio
    exploded cannot rule the batch.
    """
    loss = torch.maximum(-advantages * ratio, -advantages * clip_ratio(ratio, clip_min, clip_max))
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
