import math

import pytest
import torch

from nemo_rl.algorithms.mismatch import mismatch_metrics, mismatch_sums

GENERATION = torch.tensor([[0.0, -1.0, -2.0], [0.0, -0.5, -7.0]])
PREVIOUS = torch.tensor([[0.0, -1.0 + math.log(2), -2.0], [0.0, -0.5 - math.log(2), -9.0]])
MASK = torch.tensor([[False, True, True], [False, True, False]])


def test_values_by_hand():
    # d = log p_trainer - log p_engine = [log 2, 0, -log 2] over the three valid tokens.
    metrics = mismatch_metrics(GENERATION, PREVIOUS, MASK)
    assert metrics["gen_kl_error"] == pytest.approx((0.306853 + 0 + 0.193147) / 3, abs=1e-6)
    assert metrics["policy_kl_error"] == pytest.approx((0.193147 + 0 + 0.306853) / 3, abs=1e-6)
    assert metrics["token_mult_prob_error"] == pytest.approx(5 / 3)
    assert metrics["max_seq_mult_prob_error"] == pytest.approx(2.0)
    assert metrics["sampling_importance_ratio"] == pytest.approx((2 + 1 + 0.5) / 3)
    assert metrics["mean_abs_logprob_error"] == pytest.approx(2 * math.log(2) / 3)
    assert metrics["max_abs_logprob_error"] == pytest.approx(math.log(2))


def test_directions_of_the_divergence_are_not_swapped():
    trainer = torch.tensor([[-1.0 + 1.0]])
    metrics = mismatch_metrics(torch.tensor([[-1.0]]), trainer, torch.tensor([[True]]))
    assert metrics["gen_kl_error"] == pytest.approx(math.e - 2)
    assert metrics["policy_kl_error"] == pytest.approx(1 / math.e)


def test_js_divergence_of_one_token():
    p, q = 0.6, 0.2
    mixture = (p + q) / 2
    k3 = [side / mixture - math.log(side / mixture) - 1 for side in (p, q)]
    metrics = mismatch_metrics(torch.tensor([[math.log(p)]]), torch.tensor([[math.log(q)]]), torch.tensor([[True]]))
    assert metrics["js_divergence_error"] == pytest.approx(sum(k3) / 2, abs=1e-6)


def test_agreement_has_error_zero_and_ratio_one():
    metrics = mismatch_metrics(GENERATION, GENERATION, MASK)
    assert metrics.pop("token_mult_prob_error") == 1.0
    assert metrics.pop("max_seq_mult_prob_error") == 1.0
    assert metrics.pop("sampling_importance_ratio") == 1.0
    assert metrics == pytest.approx(dict.fromkeys(metrics, 0.0), abs=1e-7)


def test_poison_under_the_mask_and_rows_without_tokens_change_nothing():
    dirty = torch.where(MASK, GENERATION, math.nan)
    clean = mismatch_metrics(GENERATION, PREVIOUS, MASK)
    assert mismatch_metrics(dirty, torch.where(MASK, PREVIOUS, math.inf), MASK) == clean
    nothing = torch.zeros(1, 3)
    padded = [torch.cat([x, nothing]) for x in (GENERATION, PREVIOUS)]
    assert mismatch_metrics(*padded, torch.cat([MASK, nothing.bool()])) == clean


def test_token_impossible_for_the_engine_leaves_the_means_finite():
    metrics = mismatch_metrics(torch.tensor([[-math.inf]]), torch.tensor([[-1.0]]), torch.tensor([[True]]))
    assert math.isfinite(metrics["gen_kl_error"])
    assert math.isfinite(metrics["token_mult_prob_error"])
    assert metrics["max_abs_logprob_error"] == math.inf


def test_parts_merge_to_the_whole():
    parts = [mismatch_sums(GENERATION[i : i + 1], PREVIOUS[i : i + 1], MASK[i : i + 1]) for i in range(2)]
    assert parts[0].merge(parts[1]).finalize() == pytest.approx(mismatch_metrics(GENERATION, PREVIOUS, MASK))
