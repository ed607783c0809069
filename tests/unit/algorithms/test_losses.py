import math
import pickle
from dataclasses import replace
from functools import reduce

import pytest
import torch

from nemo_rl.algorithms.losses import ClippedPGLoss, NLLLoss, Normalization, Normalizer, normalized_loss
from nemo_rl.algorithms.metrics import MetricSums
from nemo_rl.policy.interfaces import TrainBatch

PLAIN = ClippedPGLoss(
    reference_policy_kl_penalty=0.01,
    reference_policy_kl_type="k3",
    kl_input_clamp_value=20.0,
    kl_output_clamp_value=10.0,
    ratio_clip_min=0.2,
    ratio_clip_max=0.2,
    ratio_clip_c=None,
    use_on_policy_kl_approximation=False,
    use_importance_sampling_correction=False,
    truncated_importance_sampling_ratio=None,
    truncated_importance_sampling_ratio_min=None,
    truncated_importance_sampling_type=None,
    sequence_level_importance_ratios=False,
    token_level_loss=True,
    force_on_policy_ratio=False,
    disable_ppo_ratio=False,
)
CORRECTED = replace(PLAIN, use_importance_sampling_correction=True, truncated_importance_sampling_ratio=1.2)
BOUNDED = replace(CORRECTED, truncated_importance_sampling_ratio_min=0.8)
VARIANTS = {
    "plain": PLAIN,
    "sequence_mean": replace(PLAIN, token_level_loss=False),
    "dual_clip_higher": replace(PLAIN, ratio_clip_c=1.5, ratio_clip_max=0.28),
    "k1": replace(PLAIN, reference_policy_kl_type="k1"),
    "k2": replace(PLAIN, reference_policy_kl_type="k2"),
    "k3_unclamped": replace(PLAIN, kl_input_clamp_value=None, kl_output_clamp_value=None),
    "on_policy_kl": replace(PLAIN, use_on_policy_kl_approximation=True),
    "correction": replace(PLAIN, use_importance_sampling_correction=True),
    "tis": replace(CORRECTED, truncated_importance_sampling_type="tis"),
    "icepop": replace(BOUNDED, truncated_importance_sampling_type="icepop"),
    "seq_mask_tis": replace(BOUNDED, truncated_importance_sampling_type="seq-mask-tis"),
    "gspo": replace(PLAIN, sequence_level_importance_ratios=True, token_level_loss=False),
    "gspo_correction": replace(
        PLAIN, sequence_level_importance_ratios=True, token_level_loss=False, use_importance_sampling_correction=True
    ),
    "force_on_policy": replace(PLAIN, force_on_policy_ratio=True),
    "reinforce": replace(PLAIN, disable_ppo_ratio=True),
    "nll": NLLLoss(),
}
every_variant = pytest.mark.parametrize("loss", VARIANTS.values(), ids=VARIANTS.keys())


def make_batch(rows: int = 6, width: int = 9, dtype: torch.dtype = torch.float32) -> TrainBatch:
    """Uneven rows: a prompt of two tokens each, one row dropped, one row without sampled tokens."""
    generator = torch.Generator().manual_seed(3)
    lengths_B = torch.tensor([9, 4, 7, 5, 9, 2])[:rows]
    columns = torch.arange(width)

    def logprobs() -> torch.Tensor:
        return (-1.5 + 0.3 * torch.randn(rows, width, generator=generator, dtype=torch.float64)).to(dtype)

    return TrainBatch(
        token_ids_BT=torch.zeros(rows, width, dtype=torch.long),
        lengths_B=lengths_B,
        loss_mask_BT=(columns[None] >= 2) & (columns[None] < lengths_B[:, None]),
        sample_mask_B=torch.tensor([True, True, False, True, True, True])[:rows],
        advantages_B=torch.tensor([1.0, -0.5, 2.0, 0.7, -1.2, 0.4], dtype=dtype)[:rows],
        generation_logprobs_BT=logprobs(),
        previous_logprobs_BT=logprobs(),
        reference_logprobs_BT=logprobs(),
    )


def current_logprobs(batch: TrainBatch) -> torch.Tensor:
    noise = torch.randn(batch.token_ids_BT.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return (batch.previous_logprobs_BT + 0.2 * noise.to(batch.previous_logprobs_BT.dtype)).requires_grad_()


def one_row(log_ratio: float, advantage: float, reference: float | None = None) -> tuple[torch.Tensor, TrainBatch]:
    """One sequence of one sampled token whose previous log-probability is -1."""
    batch = TrainBatch(
        token_ids_BT=torch.zeros(1, 2, dtype=torch.long),
        lengths_B=torch.tensor([2]),
        loss_mask_BT=torch.tensor([[False, True]]),
        sample_mask_B=torch.tensor([True]),
        advantages_B=torch.tensor([advantage]),
        generation_logprobs_BT=torch.tensor([[0.0, -1.0]]),
        previous_logprobs_BT=torch.tensor([[0.0, -1.0]]),
        reference_logprobs_BT=None if reference is None else torch.tensor([[0.0, reference]]),
    )
    return torch.tensor([[0.0, -1.0 + log_ratio]], requires_grad=True), batch


NO_KL = replace(PLAIN, reference_policy_kl_penalty=0.0)


def test_loss_and_gradient_of_one_token_by_hand():
    logprobs, batch = one_row(log_ratio=0.1, advantage=2.0)
    loss, metrics = NO_KL(logprobs, batch, Normalizer(1, 1))
    loss.backward()
    assert loss.item() == pytest.approx(-2 * math.exp(0.1))
    assert logprobs.grad.tolist() == [[0.0, pytest.approx(-2 * math.exp(0.1))]]
    assert metrics.finalize()["probs_ratio"] == pytest.approx(math.exp(0.1))


def test_kl_penalty_is_added_with_its_coefficient():
    logprobs, batch = one_row(log_ratio=0.0, advantage=0.0, reference=-1.0 + 0.693147)
    loss, metrics = replace(PLAIN, reference_policy_kl_penalty=0.5)(logprobs, batch, Normalizer(1, 1))
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * 0.306853, abs=1e-5)
    assert logprobs.grad[0, 1].item() == pytest.approx(0.5 * (1 - 2), abs=1e-5)
    assert metrics.finalize()["kl_penalty"] == pytest.approx(0.306853, abs=1e-5)


def test_on_policy_kl_approximation_weighs_the_kl_by_policy_over_engine():
    logprobs, batch = one_row(log_ratio=0.2, advantage=0.0, reference=-1.5)
    plain, _ = PLAIN(logprobs, batch, Normalizer(1, 1))
    weighted, _ = replace(PLAIN, use_on_policy_kl_approximation=True)(logprobs, batch, Normalizer(1, 1))
    assert (weighted / plain).item() == pytest.approx(math.exp(0.2), rel=1e-5)


def test_importance_weight_multiplies_the_surrogate_only():
    logprobs, batch = one_row(log_ratio=0.0, advantage=1.0)
    batch = replace(batch, generation_logprobs_BT=torch.tensor([[0.0, -1.5]]))
    loss, metrics = replace(NO_KL, use_importance_sampling_correction=True)(logprobs, batch, Normalizer(1, 1))
    assert loss.item() == pytest.approx(-math.exp(0.5))
    assert metrics.finalize()["sampling_importance_ratio"] == pytest.approx(math.exp(0.5))


def test_entropy_is_estimated_on_the_engines_samples():
    logprobs, batch = one_row(log_ratio=0.4, advantage=1.0)
    _, metrics = NO_KL(logprobs, batch, Normalizer(1, 1))
    assert metrics.finalize()["approx_entropy"] == pytest.approx(math.exp(0.4) * 0.6)


def test_metrics_have_the_names_that_dashboards_know():
    batch = make_batch()
    _, metrics = PLAIN(current_logprobs(batch), batch, Normalizer.of(batch.mask_BT))
    assert set(metrics.finalize()) == {
        *("loss", "kl_penalty", "approx_entropy", "is_oob_ratio"),
        *("probs_ratio", "probs_ratio_min", "probs_ratio_max"),
        *("probs_ratio_clamped", "probs_ratio_clamped_min", "probs_ratio_clamped_max"),
        *("gen_kl_error", "policy_kl_error", "js_divergence_error", "sampling_importance_ratio"),
        *("token_mult_prob_error", "max_seq_mult_prob_error", "mean_abs_logprob_error", "max_abs_logprob_error"),
    }


def test_reinforce_is_minus_advantage_times_log_probability():
    logprobs, batch = one_row(log_ratio=0.4, advantage=3.0)
    loss, _ = replace(NO_KL, disable_ppo_ratio=True)(logprobs, batch, Normalizer(1, 1))
    loss.backward()
    assert loss.item() == pytest.approx(-3 * -0.6)
    assert logprobs.grad[0, 1].item() == pytest.approx(-3.0)


def test_forced_on_policy_ratio_is_one_and_its_gradient_that_of_reinforce():
    batch, loss = make_batch(), replace(NO_KL, force_on_policy_ratio=True)
    logprobs = current_logprobs(batch)
    value, metrics = loss(logprobs, replace(batch, previous_logprobs_BT=None), Normalizer.of(batch.mask_BT))
    value.backward()
    expected = torch.where(batch.mask_BT, -batch.advantages_B[:, None] / batch.mask_BT.sum(), 0.0)
    torch.testing.assert_close(logprobs.grad, expected)
    assert metrics.finalize()["probs_ratio_max"] == metrics.finalize()["probs_ratio_min"] == 1.0


def test_on_policy_pair_has_loss_zero_but_a_gradient():
    batch = replace(make_batch(rows=2), advantages_B=torch.tensor([0.5, -0.5]), loss_mask_BT=torch.ones(2, 9) > 0)
    logprobs = batch.previous_logprobs_BT.clone().requires_grad_()
    loss, _ = NO_KL(logprobs, batch, Normalizer.of(batch.mask_BT))
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-7)
    assert logprobs.grad.norm() > 0.1


def test_equal_rewards_give_a_gradient_of_exactly_zero():
    batch = replace(make_batch(), advantages_B=torch.zeros(6))
    logprobs = current_logprobs(batch)
    NO_KL(logprobs, batch, Normalizer.of(batch.mask_BT))[0].backward()
    assert logprobs.grad.abs().max() == 0


PER_TOKEN = torch.tensor([[1.0, 1, 0, 0, 0, 0], [2, 2, 2, 2, 2, 2]])
PER_TOKEN_MASK = torch.tensor([[True] * 2 + [False] * 4, [True] * 6])


@pytest.mark.parametrize(
    ("normalization", "normalizer", "expected"),
    [
        pytest.param(Normalization.TOKEN, Normalizer(8, 2), 1.75, id="token_mean"),
        pytest.param(Normalization.SEQUENCE, Normalizer(8, 2), 1.5, id="sequence_mean"),
        pytest.param(Normalization.TOKEN, Normalizer(20, 2), 0.7, id="constant_length_10"),
    ],
)
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_normalisation_is_over_the_global_batch(normalization, normalizer, expected, micro_batch):
    rows = zip(PER_TOKEN.split(micro_batch), PER_TOKEN_MASK.split(micro_batch), strict=True)
    total = sum(normalized_loss(values, mask, normalization, normalizer)[0] for values, mask in rows)
    assert total.item() == pytest.approx(expected)


@every_variant
@pytest.mark.parametrize("cuts", [[1, 1, 1, 1, 1, 1], [3, 3], [1, 4, 1], [5, 1]])
def test_result_does_not_depend_on_the_micro_batch_cut(loss, cuts):
    batch = make_batch(dtype=torch.float64)
    logprobs = current_logprobs(batch)
    normalizer = Normalizer.of(batch.mask_BT)
    whole, whole_metrics = loss(logprobs, batch, normalizer)
    (whole_gradient,) = torch.autograd.grad(whole, logprobs)

    parts = []
    for index in torch.arange(batch.size).split(cuts):
        rows = batch.rows(index)
        parts.append(loss(logprobs[index, : rows.token_ids_BT.shape[1]], rows, normalizer))
    total = torch.stack([value for value, _ in parts]).sum()
    (gradient,) = torch.autograd.grad(total, logprobs)
    torch.testing.assert_close(total, whole)
    torch.testing.assert_close(gradient, whole_gradient)
    merged = reduce(MetricSums.merge, [metrics for _, metrics in parts]).finalize()
    assert merged == pytest.approx(whole_metrics.finalize(), rel=1e-9)
    assert merged["loss"] == pytest.approx(whole.item())


@every_variant
def test_what_lies_under_the_mask_changes_nothing(loss):
    batch = make_batch()
    logprobs = current_logprobs(batch)
    normalizer = Normalizer.of(batch.mask_BT)
    clean, clean_metrics = loss(logprobs, batch, normalizer)
    (clean_gradient,) = torch.autograd.grad(clean, logprobs)
    for poison in (math.nan, math.inf, -math.inf):
        spoilt = {
            name: torch.where(batch.mask_BT, getattr(batch, name), poison)
            for name in ("generation_logprobs_BT", "previous_logprobs_BT", "reference_logprobs_BT")
        }
        dirty = torch.where(batch.mask_BT, logprobs.detach(), poison).requires_grad_()
        value, metrics = loss(dirty, replace(batch, **spoilt), normalizer)
        (gradient,) = torch.autograd.grad(value, dirty)
        assert value.item() == clean.item()
        assert torch.equal(gradient, clean_gradient)
        assert metrics.finalize() == clean_metrics.finalize()


@every_variant
@pytest.mark.parametrize("field", ["loss_mask_BT", "sample_mask_B"])
def test_fully_masked_batch_has_loss_exactly_zero_and_zero_gradients(loss, field):
    batch = make_batch()
    batch = replace(batch, **{field: torch.zeros_like(getattr(batch, field))})
    logprobs = current_logprobs(batch)
    value, metrics = loss(logprobs, batch, Normalizer.of(batch.mask_BT))
    value.backward()
    assert value.item() == 0.0
    assert logprobs.grad.abs().max() == 0
    assert metrics.finalize() == {}


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_masked_global_batch_leaves_the_others_mean(cut):
    batch, nothing = make_batch(), replace(make_batch(), sample_mask_B=torch.zeros(6, dtype=torch.bool))
    metrics = NLLLoss()(torch.full_like(batch.mask_BT, -1.5, dtype=torch.float32), batch, Normalizer.of(batch.mask_BT))[
        1
    ]
    for rows in torch.arange(6).split(6 // cut):
        part = nothing.rows(rows)
        metrics = metrics.merge(NLLLoss()(torch.zeros(part.mask_BT.shape), part, Normalizer(0, 0))[1])
    assert metrics.finalize()["loss"] == pytest.approx(1.5)


@every_variant
def test_fully_masked_micro_batch_of_a_live_batch_contributes_nothing(loss):
    batch = make_batch().rows(torch.tensor([5]))
    logprobs = torch.zeros(1, 2, requires_grad=True)
    value, metrics = loss(logprobs, batch, Normalizer(100, 10))
    value.backward()
    assert value.item() == 0.0
    assert logprobs.grad.abs().max() == 0
    assert metrics.finalize() == {}


@every_variant
def test_gradient_matches_finite_differences(loss):
    batch = make_batch(dtype=torch.float64)
    normalizer = Normalizer.of(batch.mask_BT)
    logprobs = current_logprobs(batch).detach()
    leaf = logprobs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf, batch, normalizer)[0], leaf)

    # Weights that the loss treats as constants are frozen at the point of expansion.
    def value(x: torch.Tensor) -> float:
        if not isinstance(loss, ClippedPGLoss):
            return loss(x, batch, normalizer)[0].item()
        frozen = replace(batch, previous_logprobs_BT=logprobs) if loss.force_on_policy_ratio else batch
        smooth = replace(loss, force_on_policy_ratio=False, use_on_policy_kl_approximation=False)
        if not loss.use_on_policy_kl_approximation:
            return smooth(x, frozen, normalizer)[0].item()
        surrogate = replace(smooth, reference_policy_kl_penalty=0.0)(x, frozen, normalizer)[0]
        difference = batch.reference_logprobs_BT - x
        kl = (logprobs - batch.generation_logprobs_BT).exp() * (difference.expm1() - difference)
        return (surrogate + 0.01 * kl[batch.mask_BT].mean()).item()

    step = 1e-6
    for row, column in [(0, 2), (0, 8), (1, 3), (3, 4), (4, 5), (4, 8), (2, 3), (0, 0)]:
        up, down = logprobs.clone(), logprobs.clone()
        up[row, column] += step
        down[row, column] -= step
        numeric = (value(up) - value(down)) / (2 * step)
        assert gradient[row, column].item() == pytest.approx(numeric, abs=1e-7)


def test_half_precision_log_probabilities_are_computed_in_float32():
    batch = make_batch()
    loss, _ = PLAIN(current_logprobs(batch).bfloat16(), batch, Normalizer.of(batch.mask_BT))
    assert loss.dtype == torch.float32


def test_nll_is_the_mean_over_valid_tokens():
    batch = make_batch()
    logprobs = current_logprobs(batch)
    loss, _ = NLLLoss()(logprobs, batch, Normalizer.of(batch.mask_BT))
    torch.testing.assert_close(loss, -logprobs[batch.mask_BT].mean())


def test_oob_ratio_is_the_share_of_tokens_that_truncation_touched():
    batch = make_batch()
    log_weight = (batch.previous_logprobs_BT - batch.generation_logprobs_BT)[batch.mask_BT]
    _, metrics = VARIANTS["icepop"](current_logprobs(batch), batch, Normalizer.of(batch.mask_BT))
    outside = (log_weight.exp() > 1.2) | (log_weight.exp() < 0.8)
    assert 0 < metrics.finalize()["is_oob_ratio"] < 1
    assert metrics.finalize()["is_oob_ratio"] == pytest.approx(outside.float().mean().item())


def test_valid_sequences_have_a_valid_token():
    assert Normalizer.of(make_batch().mask_BT) == Normalizer(valid_tokens=19, valid_sequences=4)


def test_missing_previous_log_probabilities_are_named():
    logprobs, batch = one_row(0.0, 1.0)
    with pytest.raises(ValueError, match="no previous_logprobs_BT"):
        NO_KL(logprobs, replace(batch, previous_logprobs_BT=None), Normalizer(1, 1))


def test_penalty_without_reference_is_refused_and_without_penalty_fine():
    logprobs, batch = one_row(0.0, 1.0)
    with pytest.raises(ValueError, match="no reference_logprobs_BT"):
        PLAIN(logprobs, batch, Normalizer(1, 1))
    assert NO_KL(logprobs, batch, Normalizer(1, 1))[1].finalize()["kl_penalty"] == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratio_clip_c": 1.0}, "greater than 1"),
        ({"sequence_level_importance_ratios": True}, "token_level_loss=false"),
        ({"reference_policy_kl_type": "k9"}, "k9"),
        ({"truncated_importance_sampling_type": "tis"}, "use_importance_sampling_correction"),
        ({"truncated_importance_sampling_type": "cap"}, "cap"),
        ({"truncated_importance_sampling_type": "tis", "use_importance_sampling_correction": True}, "needs truncated"),
    ],
)
def test_contradictory_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PLAIN, **change)


def test_icepop_needs_a_lower_bound_and_seq_mask_token_ratios():
    with pytest.raises(ValueError, match="ratio_min"):
        replace(CORRECTED, truncated_importance_sampling_type="icepop")
    with pytest.raises(ValueError, match="token ratios"):
        replace(VARIANTS["seq_mask_tis"], sequence_level_importance_ratios=True, token_level_loss=False)


@every_variant
def test_losses_travel_by_pickle(loss):
    assert pickle.loads(pickle.dumps(loss)) == loss
