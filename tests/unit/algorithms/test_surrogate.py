import math

import pytest
import torch

from nemo_rl.algorithms.surrogate import clipped_surrogate, policy_ratio

ALL = torch.ones(1, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        pytest.param(1.0, 2.0, -2.0, -2.0, id="at_one"),
        pytest.param(1.1, 2.0, -2.2, -2.0, id="inside_the_range"),
        pytest.param(1.5, 1.0, -1.28, 0.0, id="good_token_is_clipped_above"),
        pytest.param(0.5, 1.0, -0.5, -1.0, id="good_token_is_not_clipped_below"),
        pytest.param(0.5, -1.0, 0.8, 0.0, id="bad_token_is_clipped_below"),
        pytest.param(1.5, -1.0, 1.5, 1.0, id="bad_token_is_not_clipped_above"),
        pytest.param(5.0, -1.0, 3.0, 0.0, id="dual_clip_bounds_a_bad_token"),
        pytest.param(5.0, 0.0, 0.0, 0.0, id="zero_advantage"),
    ],
)
def test_clip_with_unequal_sides_and_dual_clip(ratio, advantage, loss, slope):
    ratio_leaf = torch.tensor(ratio, requires_grad=True)
    value = clipped_surrogate(ratio_leaf, torch.tensor(advantage), clip_min=0.2, clip_max=0.28, dual_clip=3.0)
    value.backward()
    assert value.item() == pytest.approx(loss, abs=1e-6)
    assert ratio_leaf.grad.item() == pytest.approx(slope, abs=1e-6)


def test_without_dual_clip_a_bad_token_is_unbounded():
    value = clipped_surrogate(torch.tensor(5.0), torch.tensor(-1.0), 0.2, 0.2, dual_clip=None)
    assert value.item() == 5.0


def test_sequence_ratio_is_the_geometric_mean():
    log_ratios = torch.tensor([[0.1, -0.3, 0.2]])
    ratio = policy_ratio(log_ratios - 1, torch.full((1, 3), -1.0), ALL, sequence_level=True)
    torch.testing.assert_close(ratio, torch.ones(1, 3))


def test_sequence_ratio_ignores_masked_out_tokens():
    log_ratios = torch.tensor([[0.2, 0.4, math.inf]])
    mask = torch.tensor([[True, True, False]])
    ratio = policy_ratio(log_ratios, torch.zeros(1, 3), mask, sequence_level=True)
    torch.testing.assert_close(ratio[0, :2], torch.full((2,), math.exp(0.3)))


def test_token_ratio_is_one_where_masked_out():
    ratio = policy_ratio(torch.tensor([[0.5, 9.0]]), torch.zeros(1, 2), torch.tensor([[True, False]]), False)
    torch.testing.assert_close(ratio, torch.tensor([[math.exp(0.5), 1.0]]))


def test_exploded_ratio_has_finite_value_and_gradient():
    logprobs = torch.tensor([[0.0]], requires_grad=True)
    ratio = policy_ratio(logprobs, torch.tensor([[-500.0]]), ALL[:, :1], sequence_level=False)
    loss = clipped_surrogate(ratio, torch.tensor([[1.0]]), 0.2, 0.2, None).sum()
    loss.backward()
    assert loss.item() == pytest.approx(-1.2)
    assert logprobs.grad.item() == 0.0


@pytest.mark.parametrize("sequence_level", [False, True])
def test_gradient_matches_finite_differences(sequence_level):
    logprobs = torch.tensor([[-1.0, -0.5, -2.0]], dtype=torch.float64, requires_grad=True)
    previous = torch.tensor([[-1.05, -0.1, -2.6]], dtype=torch.float64)

    def loss(x):
        ratio = policy_ratio(x, previous, ALL, sequence_level)
        return clipped_surrogate(ratio, torch.tensor([[-1.5]], dtype=torch.float64), 0.2, 0.2, 3.0)

    assert torch.autograd.gradcheck(loss, logprobs)
