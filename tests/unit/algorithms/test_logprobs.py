import math

import pytest
import torch

from nemo_rl.algorithms.logprobs import token_logprobs


def first_logprob(logits: list[float], token: int, temperature: float = 1.0, vocab_size: int | None = None) -> float:
    """The log-probability of `token` at position 1, given logits at position 0."""
    logits_BTV = torch.tensor([[logits, [0.0] * len(logits)]])
    return token_logprobs(logits_BTV, torch.tensor([[0, token]]), temperature, vocab_size)[0, 1].item()


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, -0.407606), (0.6, -0.202573)])
def test_log_probability_at_the_sampling_temperature(temperature, expected):
    assert first_logprob([2.0, 1.0, 0.0], 0, temperature) == pytest.approx(expected, abs=1e-6)


def test_trainer_that_forgets_the_temperature_is_off_by_this_ratio():
    wrong, right = first_logprob([2.0, 1.0, 0.0], 0, 1.0), first_logprob([2.0, 1.0, 0.0], 0, 0.6)
    assert math.exp(wrong - right) == pytest.approx(0.8146, abs=1e-4)


def test_padded_vocabulary_does_not_enter_the_softmax():
    padded = [2.0, 1.0, 0.0] + [0.0] * 5
    assert first_logprob(padded, 0, vocab_size=3) == pytest.approx(-0.407606, abs=1e-6)
    assert first_logprob(padded, 0) == pytest.approx(-0.779275, abs=1e-6)


def test_column_zero_is_zero_and_column_t_reads_the_logits_before_it():
    logits_BTV = torch.randn(2, 4, 5)
    ids_BT = torch.randint(5, (2, 4))
    result_BT = token_logprobs(logits_BTV, ids_BT, 1.0)
    assert result_BT[:, 0].tolist() == [0.0, 0.0]
    for t in range(1, 4):
        expected_B = logits_BTV[:, t - 1].log_softmax(-1).gather(-1, ids_BT[:, t : t + 1])[:, 0]
        torch.testing.assert_close(result_BT[:, t], expected_B)


def test_half_precision_logits_are_normalised_in_float32():
    logits_BTV = torch.randn(1, 3, 50).bfloat16()
    ids_BT = torch.tensor([[1, 2, 3]])
    result = token_logprobs(logits_BTV, ids_BT, 0.7)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, token_logprobs(logits_BTV.float(), ids_BT, 0.7))


def test_last_logits_have_no_gradient():
    logits_BTV = torch.randn(1, 3, 4, requires_grad=True)
    token_logprobs(logits_BTV, torch.tensor([[0, 1, 2]]), 1.0).sum().backward()
    assert logits_BTV.grad[:, -1].abs().max() == 0
    assert (logits_BTV.grad[:, :-1].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ValueError, match="temperature must be positive"):
        first_logprob([0.0, 1.0], 0, temperature)
