import pytest
import torch

from nemo_rl.data.packed_layout import packed_layout, packed_zigzag_indices, zigzag_indices, zigzag_inverse


def test_offsets_of_real_and_padded_tokens():
    layout = packed_layout([3, 5, 4], sequence_multiple=4, total_multiple=1)
    assert layout.cu_seqlens.tolist() == [0, 3, 8, 12]
    assert layout.cu_seqlens_padded.tolist() == [0, 4, 12, 16]
    assert layout.cu_seqlens.dtype == layout.cu_seqlens_padded.dtype == torch.int32
    assert (layout.total_length, layout.max_length) == (16, 8)


def test_last_sequence_takes_the_rounding_of_the_row():
    layout = packed_layout([3, 5], sequence_multiple=4, total_multiple=64)
    assert layout.cu_seqlens_padded.tolist() == [0, 4, 64]
    assert layout.max_length == 60


def test_rounded_row_stays_divisible_for_context_parallelism():
    layout = packed_layout([3, 5], sequence_multiple=6, total_multiple=4)
    assert layout.cu_seqlens_padded.tolist() == [0, 6, 12]
    assert packed_layout([7, 5], sequence_multiple=6, total_multiple=4).total_length == 24


def test_without_rounding_padded_equals_real():
    layout = packed_layout([3, 5], 1, 1)
    assert layout.cu_seqlens.equal(layout.cu_seqlens_padded)


def test_row_of_no_sequences():
    layout = packed_layout([], 4, 64)
    assert (layout.cu_seqlens.tolist(), layout.total_length, layout.max_length) == ([0], 0, 0)
    assert packed_zigzag_indices(layout, 2, 0).tolist() == []


def test_zigzag_pairs_an_early_chunk_with_a_late_one():
    assert zigzag_indices(8, 2, 0).tolist() == [0, 1, 6, 7]
    assert zigzag_indices(8, 2, 1).tolist() == [2, 3, 4, 5]


def test_zigzag_gives_every_rank_the_same_causal_work():
    work = {int((zigzag_indices(48, 4, rank) + 1).sum()) for rank in range(4)}
    assert len(work) == 1


@pytest.mark.parametrize("cp_size", [1, 2, 3, 4])
def test_inverse_restores_the_sequence(cp_size):
    tokens = torch.randperm(48)
    gathered = torch.cat([tokens[zigzag_indices(48, cp_size, rank)] for rank in range(cp_size)])
    assert torch.equal(gathered[zigzag_inverse(48, cp_size)], tokens)


def test_length_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="10 tokens do not divide into 4 chunks"):
        zigzag_indices(10, 2, 0)


def test_packed_row_is_cut_sequence_by_sequence():
    layout = packed_layout([4, 8], sequence_multiple=4, total_multiple=1)
    assert packed_zigzag_indices(layout, 2, 0).tolist() == [0, 3, 4, 5, 10, 11]
    assert packed_zigzag_indices(layout, 2, 1).tolist() == [1, 2, 6, 7, 8, 9]
