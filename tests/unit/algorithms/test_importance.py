import math

import pytest
import torch

from nemo_rl.algorithms.importance import importance_weights, truncate_weights

ALL = torch.ones(1, 3, dtype=torch.bool)
WEIGHTS = torch.tensor([[0.4, 1.0, 3.0]])


def test_tis_caps_from_above():
    result = truncate_weights(WEIGHTS, ALL, "tis", lower=None, upper=2.0)
    torch.testing.assert_close(result.weights_BT, torch.tensor([[0.4, 1.0, 2.0]]))
    assert result.out_of_bounds_BT.tolist() == [[False, False, True]]


def test_tis_with_a_lower_bound_lifts_small_weights():
    result = truncate_weights(WEIGHTS, ALL, "tis", lower=0.5, upper=2.0)
    torch.testing.assert_close(result.weights_BT, torch.tensor([[0.5, 1.0, 2.0]]))


def test_icepop_drops_tokens_on_both_sides():
    result = truncate_weights(WEIGHTS, ALL, "icepop", lower=0.5, upper=2.0)
    assert result.weights_BT.tolist() == [[0.0, 1.0, 0.0]]
    assert result.out_of_bounds_BT.tolist() == [[True, False, True]]


def test_bounds_themselves_are_inside():
    result = truncate_weights(torch.tensor([[0.5, 1.0, 2.0]]), ALL, "icepop", lower=0.5, upper=2.0)
    assert result.weights_BT.tolist() == [[0.5, 1.0, 2.0]]


def test_seq_mask_tis_drops_rows_by_geometric_mean_and_keeps_the_others_weights():
    weights = torch.tensor([[0.25, 1.0, 4.0], [3.0, 3.0, 9.0], [0.1, 1.0, 99.0]])
    mask = torch.tensor([[True, True, True], [True, True, True], [False, True, False]])
    result = truncate_weights(weights, mask, "seq-mask-tis", lower=0.5, upper=2.0)
    torch.testing.assert_close(result.weights_BT[0], weights[0])  # geometric mean 1
    assert result.weights_BT[1].tolist() == [0.0, 0.0, 0.0]  # geometric mean 4.3
    assert result.weights_BT[2, 1].item() == 1.0  # masked-out weights do not count
    assert result.out_of_bounds_BT.tolist() == [[False] * 3, [True] * 3, [False] * 3]


def test_without_truncation_weights_pass():
    result = truncate_weights(WEIGHTS, ALL, None, lower=None, upper=None)
    assert result.weights_BT is WEIGHTS
    assert not result.out_of_bounds_BT.any()


def test_weight_is_trainer_over_engine_per_token_without_gradient():
    previous = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
    generation = torch.tensor([[-1.0, -3.0, -2.0]])
    weights = importance_weights(previous, generation, ALL, sequence_level=False)
    torch.testing.assert_close(weights, torch.tensor([[1.0, math.e, 1 / math.e]]))
    assert not weights.requires_grad


def test_sequence_level_weight_is_the_product_over_valid_tokens():
    previous, generation = torch.tensor([[-1.0, -2.0, -3.0]]), torch.tensor([[-1.5, -2.5, -99.0]])
    mask = torch.tensor([[True, True, False]])
    weights = importance_weights(previous, generation, mask, sequence_level=True)
    torch.testing.assert_close(weights, torch.full((1, 3), math.e))


@pytest.mark.parametrize("value", [-math.inf, math.nan, 1e9])
def test_masked_out_log_probabilities_do_not_matter(value):
    generation = torch.tensor([[-1.0, -1.0, value]])
    weights = importance_weights(
        torch.full((1, 3), -1.0), generation, torch.tensor([[True, True, False]]), sequence_level=True
    )
    assert weights.tolist() == [[1.0, 1.0, 1.0]]


def test_token_that_the_engine_gave_probability_zero_has_a_finite_weight():
    weights = importance_weights(torch.zeros(1, 1), torch.tensor([[-math.inf]]), ALL[:, :1], sequence_level=False)
    assert math.isfinite(weights.item())


def test_unknown_truncation_is_refused():
    with pytest.raises(ValueError, match="tiss"):
        truncate_weights(WEIGHTS, ALL, "tiss", lower=None, upper=2.0)
