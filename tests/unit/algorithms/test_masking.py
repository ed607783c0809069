import math

import torch

from nemo_rl.algorithms.masking import mask_by_length, masked_fill_zero, masked_mean, masked_sum


def test_masked_out_infinity_reaches_neither_mean_nor_gradient():
    values = torch.tensor([1.0, math.inf], requires_grad=True)
    mean = masked_mean(values, torch.tensor([True, False]))
    mean.backward()
    assert mean.item() == 1.0
    assert values.grad.tolist() == [1.0, 0.0]


def test_masked_out_nan_reaches_neither_sum_nor_gradient():
    values = torch.tensor([[math.nan, 2.0], [3.0, -math.inf]], requires_grad=True)
    masked_sum(values, torch.tensor([[False, True], [True, False]])).backward()
    assert values.grad.tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_inputs_of_exp_are_filled_so_that_its_backward_is_finite():
    values = torch.tensor([0.0, 1000.0], requires_grad=True)
    mask = torch.tensor([True, False])
    masked_sum(masked_fill_zero(values, mask).exp(), mask).backward()
    assert values.grad.tolist() == [1.0, 0.0]


def test_mean_of_nothing_is_zero_with_zero_gradient():
    values = torch.tensor([[1.0, math.nan]], requires_grad=True)
    mean = masked_mean(values, torch.tensor([[False, False]]))
    mean.backward()
    assert mean.item() == 0.0
    assert values.grad.tolist() == [[0.0, 0.0]]


def test_mean_along_a_dimension_uses_each_rows_own_count():
    values = torch.tensor([[1.0, 3.0, 9.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    assert masked_mean(values, mask, dim=-1).tolist() == [2.0, 4.0, 0.0]


def test_length_says_what_is_padding_where_pad_equals_eos():
    # Token ids [5, 6, 2, 2, 2] with pad = eos = 2 and length 3: the first 2 is the real end of sequence.
    assert mask_by_length(torch.tensor([3]), 5).int().tolist() == [[1, 1, 1, 0, 0]]


def test_lengths_of_zero_and_full_width():
    assert mask_by_length(torch.tensor([0, 2]), 2).tolist() == [[False, False], [True, True]]
