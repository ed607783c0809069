"""Estimates of KL divergences from the log-probabilities of sampled tokens."""

from enum import StrEnum

from torch import Tensor


class KLKind(StrEnum):
    """The estimators of Schulman, "Approximating KL Divergence" (2020)."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


def kl_estimate(
    logprobs: Tensor, reference: Tensor, kind: KLKind | str, input_clamp: float | None, output_clamp: float | None
) -> Tensor:
    """Per-token estimate of KL(policy || reference), any shape, for tokens drawn from the policy.

    With d = reference - policy (log-probabilities):  k1 = -d,  k2 = d^2 / 2,  k3 = exp(d) - d - 1 >= 0.
    k1 and k3 are unbiased. d is clamped to +-input_clamp before exp, the estimate to +-output_clamp; clamped entries
    have zero gradient. None leaves the value as it is, up to e^88.
    """
    difference = reference - logprobs
    if input_clamp is not None:
        difference = difference.clamp(-input_clamp, input_clamp)
    match KLKind(kind):
        case KLKind.K1:
            estimate = -difference
        case KLKind.K2:
            estimate = difference.square() / 2
        case KLKind.K3:
            # expm1: exp(d) - 1 - d loses every digit in float32 where d is about 1e-4. Above 88 float32 overflows, and
            # infinity times the zero gradient of the output's clamp is not a number.
            estimate = difference.clamp(max=88.0).expm1() - difference
    return estimate if output_clamp is None else estimate.clamp(-output_clamp, output_clamp)
