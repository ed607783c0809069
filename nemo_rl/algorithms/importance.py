"""Importance weights that correct for the engine and the trainer giving one token different probabilities."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from nemo_rl.algorithms.masking import masked_fill_zero, masked_mean, masked_sum
from nemo_rl.algorithms.surrogate import bounded_exp


class Truncation(StrEnum):
    """What happens to weights outside the bounds."""

    TIS = "tis"
    ICEPOP = "icepop"
    SEQ_MASK_TIS = "seq-mask-tis"


@dataclass(frozen=True)
class ImportanceWeights:
    """Constants (no gradient), [B, T]: the weights, and which tokens the truncation touched."""

    weights_BT: Tensor
    out_of_bounds_BT: Tensor


def importance_weights(previous_BT: Tensor, generation_BT: Tensor, mask_BT: Tensor, *, sequence_level: bool) -> Tensor:
    """pi_trainer(token) / pi_engine(token) = exp(previous - generation), [B, T], without gradient; 1 where masked out.

    At sequence level every token of a row has the ratio of the whole row, exp(sum of the row's log-ratios).
    """
    log_ratio_BT = masked_fill_zero(previous_BT.detach() - generation_BT.detach(), mask_BT)
    if sequence_level:
        log_ratio_BT = masked_sum(log_ratio_BT, mask_BT, dim=-1)[:, None].expand_as(log_ratio_BT)
    return bounded_exp(log_ratio_BT)


def truncate_weights(
    weights_BT: Tensor, mask_BT: Tensor, kind: Truncation | str | None, lower: float | None, upper: float | None
) -> ImportanceWeights:
    """The weights after truncation to the bounds; out_of_bounds_BT is False where the mask is.

    tis            min(w, upper), and max(., lower) if a lower bound is given (Yao et al. 2025, "Your efficient RL
                   framework secretly brings you off-policy RL training").
    icepop         w inside [lower, upper], 0 outside: the token is dropped (Ring-1T, arXiv:2510.18855).
    seq-mask-tis   rows whose geometric mean of w lies outside [lower, upper] are dropped; the others keep their w.
    None           w as it is.
    """
    if kind is None:
        return ImportanceWeights(weights_BT, torch.zeros_like(mask_BT))
    low, high = 0.0 if lower is None else lower, float("inf") if upper is None else upper
    match Truncation(kind):
        case Truncation.TIS:
            outside_BT = (weights_BT < low) | (weights_BT > high)
            kept_BT = weights_BT.clamp(low, high)
        case Truncation.ICEPOP:
            outside_BT = (weights_BT < low) | (weights_BT > high)
            kept_BT = weights_BT.masked_fill(outside_BT, 0.0)
        case Truncation.SEQ_MASK_TIS:
            geometric_mean_B = masked_mean(weights_BT.log(), mask_BT, dim=-1).exp()
            outside_B = (geometric_mean_B < low) | (geometric_mean_B > high)
            outside_BT = outside_B[:, None].expand_as(weights_BT)
            kept_BT = weights_BT.masked_fill(outside_BT, 0.0)
    return ImportanceWeights(kept_BT, outside_BT & mask_BT)
