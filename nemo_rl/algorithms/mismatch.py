"""How far the engine's log-probabilities are from the trainer's, for the same tokens and weights."""

from math import log

import torch
from torch import Tensor

from nemo_rl.algorithms.kl import KLKind, kl_estimate
from nemo_rl.algorithms.masking import at_least_float32, masked_fill_zero, masked_mean
from nemo_rl.algorithms.metrics import MetricSums
from nemo_rl.algorithms.surrogate import MAX_LOG_RATIO, bounded_exp


def mismatch_metrics(generation_logprobs_BT: Tensor, previous_logprobs_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """The mismatch metrics of a whole batch; see `mismatch_sums` for their definitions."""
    return mismatch_sums(generation_logprobs_BT, previous_logprobs_BT, mask_BT).finalize()


def mismatch_sums(generation_BT: Tensor, previous_BT: Tensor, mask_BT: Tensor) -> MetricSums:
    """Metrics over the valid tokens, which the engine sampled, with d = log p_trainer - log p_engine:

    gen_kl_error                k3 estimate of KL(engine || trainer): mean of exp(d) - d - 1
    policy_kl_error             the same with -d, the direction KL(trainer || engine)
    js_divergence_error         half of each side's k3 estimate against the mixture (p_trainer + p_engine) / 2
    token_mult_prob_error       mean of exp|d|, at least 1
    max_seq_mult_prob_error     largest mean of exp|d| over one sequence
    sampling_importance_ratio   mean of exp(d)
    mean_abs_logprob_error, max_abs_logprob_error   of |d|
    """
    trainer_BT = masked_fill_zero(at_least_float32(previous_BT.detach()), mask_BT)
    engine_BT = masked_fill_zero(at_least_float32(generation_BT.detach()), mask_BT)
    difference_BT = trainer_BT - engine_BT
    mixture_BT = torch.logaddexp(trainer_BT, engine_BT) - log(2.0)
    mult_prob_error_BT = bounded_exp(difference_BT.abs())

    means = MetricSums.of_means(
        {
            "gen_kl_error": _k3(engine_BT, trainer_BT),
            "policy_kl_error": _k3(trainer_BT, engine_BT),
            "js_divergence_error": (_k3(mixture_BT, trainer_BT) + _k3(mixture_BT, engine_BT)) / 2,
            "token_mult_prob_error": mult_prob_error_BT,
            "sampling_importance_ratio": bounded_exp(difference_BT),
            "mean_abs_logprob_error": difference_BT.abs(),
        },
        mask_BT,
    )
    per_sequence_B = masked_mean(mult_prob_error_BT, mask_BT, dim=-1)
    largest = MetricSums.of_max("max_seq_mult_prob_error", per_sequence_B, mask_BT.any(-1))
    return means | largest | MetricSums.of_max("max_abs_logprob_error", difference_BT.abs(), mask_BT)


def _k3(policy: Tensor, reference: Tensor) -> Tensor:
    return kl_estimate(policy, reference, KLKind.K3, input_clamp=MAX_LOG_RATIO, output_clamp=None)
