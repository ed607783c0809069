import math

import pytest
import torch

from nemo_rl.algorithms.kl import kl_estimate


def k3(difference: list[float], input_clamp=20.0, output_clamp=None) -> torch.Tensor:
    reference = torch.tensor(difference)
    return kl_estimate(torch.zeros_like(reference), reference, "k3", input_clamp, output_clamp)


def test_k3_values():
    torch.testing.assert_close(k3([0.693147, -0.693147]), torch.tensor([0.306853, 0.193147]), atol=1e-6, rtol=0)


def test_k3_of_a_huge_difference_is_finite_with_finite_gradient():
    policy = torch.tensor([-100.0], requires_grad=True)
    value = kl_estimate(policy, torch.zeros(1), "k3", input_clamp=20.0, output_clamp=None)
    value.sum().backward()
    assert math.isfinite(value.item())
    assert policy.grad.item() == 0.0


def test_k3_is_never_negative_and_keeps_its_digits_near_zero():
    differences = [10.0**-exponent * sign for exponent in range(1, 8) for sign in (1, -1)]
    values = k3(differences)
    assert (values >= 0).all()
    torch.testing.assert_close(k3([1e-3]), torch.tensor([5.0017e-7]), atol=0, rtol=1e-3)


def test_k1_and_k2_values():
    policy, reference = torch.tensor([-1.0]), torch.tensor([-3.0])
    assert kl_estimate(policy, reference, "k1", None, None).item() == 2.0
    assert kl_estimate(policy, reference, "k2", None, None).item() == 2.0
    assert kl_estimate(reference, policy, "k1", None, None).item() == -2.0


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_expectation_of_the_estimate_is_the_divergence(kind):
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    expectation = (p * kl_estimate(p.log(), q.log(), kind, 20.0, 10.0)).sum()
    assert expectation.item() == pytest.approx(0.085123, abs=1e-6)


def test_output_clamp_holds_on_both_sides():
    policy, reference = torch.tensor([0.0, 0.0]), torch.tensor([-30.0, 30.0])
    assert kl_estimate(policy, reference, "k1", 20.0, 10.0).tolist() == [10.0, -10.0]


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_gradient_matches_finite_differences(kind):
    policy = torch.tensor([-1.0, -0.3, -2.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-0.5, -0.9, -2.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, reference, kind, 20.0, 10.0), policy)


def test_k3_beyond_float32_is_clamped_with_zero_gradient():
    policy = torch.tensor([-100.0, -1.0], requires_grad=True)
    estimate = kl_estimate(policy, torch.tensor([-0.5, -0.5]), "k3", None, 10.0)
    estimate.sum().backward()
    assert estimate.tolist() == [10.0, pytest.approx(0.1487213)]
    assert policy.grad.tolist() == [0.0, pytest.approx(-0.6487213)]


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="k4"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4", None, None)
