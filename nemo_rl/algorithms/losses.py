"""The losses that the policy is trained with: clipped policy gradient for GRPO, negative log-likelihood for SFT.

A loss is a picklable object that a worker calls on one micro-batch. It divides by the totals of the whole global batch,
so the losses and gradients of micro-batches and ranks are simply added, and no result depends on how the batch was cut.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from nemo_rl.algorithms.importance import ImportanceWeights, Truncation, importance_weights, truncate_weights
from nemo_rl.algorithms.kl import KLKind, kl_estimate
from nemo_rl.algorithms.masking import at_least_float32, masked_fill_zero, masked_mean, masked_sum
from nemo_rl.algorithms.metrics import MetricSums
from nemo_rl.algorithms.mismatch import mismatch_sums
from nemo_rl.algorithms.surrogate import bounded_exp, clip_ratio, clipped_surrogate, policy_ratio
from nemo_rl.policy.interfaces import TrainBatch


class Normalization(Enum):
    """TOKEN: every valid token of the global batch weighs the same. SEQUENCE: every sequence does."""

    TOKEN = "token"
    SEQUENCE = "sequence"


@dataclass(frozen=True)
class Normalizer:
    """Totals of one global batch, over all ranks and micro-batches, that losses are divided by.

    A valid sequence has at least one valid token.
    """

    valid_tokens: float
    valid_sequences: float

    @classmethod
    def of(cls, mask_BT: Tensor) -> "Normalizer":
        return cls(float(mask_BT.sum()), float(mask_BT.any(-1).sum()))


class Loss(Protocol):
    """Log-probabilities [B, T] of one micro-batch -> its share of the global loss, 0-d, and its metrics."""

    def __call__(self, logprobs_BT: Tensor, batch: TrainBatch, normalizer: Normalizer) -> tuple[Tensor, MetricSums]: ...


def normalized_loss(
    per_token_BT: Tensor, mask_BT: Tensor, normalization: Normalization, normalizer: Normalizer
) -> tuple[Tensor, MetricSums]:
    """This micro-batch's share of the global mean, and the metric `loss`.

    TOKEN: sum over valid tokens / valid_tokens. SEQUENCE: sum over rows of the row's mean / valid_sequences.
    The metric's weight is the share of the global batch that was seen, so that `finalize` gives the mean over it all;
    a global batch without a valid token has none.
    """
    if normalization is Normalization.TOKEN:
        total, seen, whole = masked_sum(per_token_BT, mask_BT), mask_BT.sum(), normalizer.valid_tokens
    else:
        total = masked_mean(per_token_BT, mask_BT, dim=-1).sum()
        seen, whole = mask_BT.any(-1).sum(), normalizer.valid_sequences
    loss = total / whole if whole > 0 else total * 0.0
    weight = seen.double() / max(whole, 1.0)
    return loss, MetricSums(means={"loss": (loss.detach().double(), weight)})


@dataclass(frozen=True)
class NLLLoss:
    """Mean of -log pi(token) over the valid tokens of the global batch."""

    def __call__(self, logprobs_BT: Tensor, batch: TrainBatch, normalizer: Normalizer) -> tuple[Tensor, MetricSums]:
        mask_BT = batch.mask_BT
        return normalized_loss(
            -masked_fill_zero(at_least_float32(logprobs_BT), mask_BT), mask_BT, Normalization.TOKEN, normalizer
        )


@dataclass(frozen=True)
class ClippedPGLoss:
    """Clipped policy gradient with a KL penalty; the fields are the keys of the configuration's `loss_fn`.

        loss = mean over tokens of  w * surrogate(pi / pi_previous, A)  +  beta * v * KL(pi || pi_reference)

    w corrects for the engine that sampled (1 unless `use_importance_sampling_correction`); v = pi / pi_engine if
    `use_on_policy_kl_approximation`, else 1; both are constants. `force_on_policy_ratio` takes pi itself, without
    gradient, for pi_previous; `disable_ppo_ratio` makes the surrogate REINFORCE's -A log pi.
    """

    reference_policy_kl_penalty: float
    reference_policy_kl_type: KLKind | str
    kl_input_clamp_value: float | None
    kl_output_clamp_value: float | None
    ratio_clip_min: float
    ratio_clip_max: float
    ratio_clip_c: float | None
    use_on_policy_kl_approximation: bool
    use_importance_sampling_correction: bool
    truncated_importance_sampling_ratio: float | None
    truncated_importance_sampling_ratio_min: float | None
    truncated_importance_sampling_type: Truncation | str | None
    sequence_level_importance_ratios: bool
    token_level_loss: bool
    force_on_policy_ratio: bool
    disable_ppo_ratio: bool

    def __post_init__(self) -> None:
        if self.ratio_clip_c is not None and self.ratio_clip_c <= 1:
            raise ValueError(f"ratio_clip_c must be greater than 1, got {self.ratio_clip_c}")
        if self.sequence_level_importance_ratios and self.token_level_loss:
            raise ValueError("sequence_level_importance_ratios needs token_level_loss=false")
        KLKind(self.reference_policy_kl_type)
        if self.truncated_importance_sampling_type is None:
            return
        kind = Truncation(self.truncated_importance_sampling_type)
        if not self.use_importance_sampling_correction:
            raise ValueError("truncated_importance_sampling_type needs use_importance_sampling_correction=true")
        if self.truncated_importance_sampling_ratio is None:
            raise ValueError(f"truncation {kind} needs truncated_importance_sampling_ratio")
        if kind is not Truncation.TIS and self.truncated_importance_sampling_ratio_min is None:
            raise ValueError(f"truncation {kind} needs truncated_importance_sampling_ratio_min")
        if kind is Truncation.SEQ_MASK_TIS and self.sequence_level_importance_ratios:
            raise ValueError("seq-mask-tis works on token ratios: set sequence_level_importance_ratios=false")

    @property
    def normalization(self) -> Normalization:
        return Normalization.TOKEN if self.token_level_loss else Normalization.SEQUENCE

    def __call__(self, logprobs_BT: Tensor, batch: TrainBatch, normalizer: Normalizer) -> tuple[Tensor, MetricSums]:
        mask_BT = batch.mask_BT
        logprobs_BT = masked_fill_zero(at_least_float32(logprobs_BT), mask_BT)
        generation_BT = masked_fill_zero(at_least_float32(batch.generation_logprobs_BT), mask_BT)
        previous_BT = masked_fill_zero(self._previous(logprobs_BT, batch), mask_BT)

        weights = self._importance(previous_BT, generation_BT, mask_BT)
        ratio_BT = policy_ratio(logprobs_BT, previous_BT, mask_BT, self.sequence_level_importance_ratios)
        policy_loss_BT = weights.weights_BT * self._surrogate(logprobs_BT, ratio_BT, batch.advantages_B[:, None])
        kl_BT = self._kl(logprobs_BT, batch, mask_BT)
        drift_BT = bounded_exp(logprobs_BT.detach() - generation_BT)
        kl_weight_BT = drift_BT if self.use_on_policy_kl_approximation else torch.ones_like(drift_BT)
        per_token_BT = policy_loss_BT + self.reference_policy_kl_penalty * kl_weight_BT * kl_BT

        loss, metrics = normalized_loss(per_token_BT, mask_BT, self.normalization, normalizer)
        clipped_BT = clip_ratio(ratio_BT, self.ratio_clip_min, self.ratio_clip_max)
        means = {
            "probs_ratio": ratio_BT,
            "probs_ratio_clamped": clipped_BT,
            "kl_penalty": kl_BT,
            "is_oob_ratio": weights.out_of_bounds_BT,
            "approx_entropy": -drift_BT * logprobs_BT,
        }
        metrics = metrics | MetricSums.of_means(means, mask_BT) | MetricSums.of_range("probs_ratio", ratio_BT, mask_BT)
        metrics = metrics | MetricSums.of_range("probs_ratio_clamped", clipped_BT, mask_BT)
        return loss, metrics | mismatch_sums(generation_BT, previous_BT, mask_BT)

    def _previous(self, logprobs_BT: Tensor, batch: TrainBatch) -> Tensor:
        """The log-probabilities that the ratio is taken against."""
        if self.force_on_policy_ratio:
            return logprobs_BT.detach()
        if batch.previous_logprobs_BT is None:
            raise ValueError("the batch has no previous_logprobs_BT: compute them, or set force_on_policy_ratio=true")
        return at_least_float32(batch.previous_logprobs_BT)

    def _importance(self, previous_BT: Tensor, generation_BT: Tensor, mask_BT: Tensor) -> ImportanceWeights:
        if not self.use_importance_sampling_correction:
            return ImportanceWeights(torch.ones_like(generation_BT), torch.zeros_like(mask_BT))
        weights_BT = importance_weights(
            previous_BT, generation_BT, mask_BT, sequence_level=self.sequence_level_importance_ratios
        )
        return truncate_weights(
            weights_BT,
            mask_BT,
            self.truncated_importance_sampling_type,
            lower=self.truncated_importance_sampling_ratio_min,
            upper=self.truncated_importance_sampling_ratio,
        )

    def _surrogate(self, logprobs_BT: Tensor, ratio_BT: Tensor, advantages_B1: Tensor) -> Tensor:
        if self.disable_ppo_ratio:
            return -advantages_B1 * logprobs_BT
        return clipped_surrogate(ratio_BT, advantages_B1, self.ratio_clip_min, self.ratio_clip_max, self.ratio_clip_c)

    def _kl(self, logprobs_BT: Tensor, batch: TrainBatch, mask_BT: Tensor) -> Tensor:
        """Per-token KL(pi || pi_reference), zeros without a reference; [B, T]."""
        if batch.reference_logprobs_BT is None:
            if self.reference_policy_kl_penalty != 0:
                raise ValueError("reference_policy_kl_penalty is set but the batch has no reference_logprobs_BT")
            return torch.zeros_like(logprobs_BT)
        return kl_estimate(
            logprobs_BT,
            masked_fill_zero(at_least_float32(batch.reference_logprobs_BT), mask_BT),
            self.reference_policy_kl_type,
            input_clamp=self.kl_input_clamp_value,
            output_clamp=self.kl_output_clamp_value,
        )
