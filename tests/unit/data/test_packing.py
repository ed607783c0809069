import random
from itertools import combinations

import pytest

from nemo_rl.data.packing import PackingAlgorithm, balance_by_tokens, equalize_bins, pack_sequences

every_algorithm = pytest.mark.parametrize("algorithm", list(PackingAlgorithm))
FFD, MFFD = "first_fit_decreasing", "modified_first_fit_decreasing"


def as_lengths(bins, lengths):
    return [sorted((lengths[index] for index in members), reverse=True) for members in bins]


def random_lengths(seed: int, most: int = 60) -> list[int]:
    generator = random.Random(seed)
    return [generator.randint(1, 100) for _ in range(generator.randint(0, most))]


@every_algorithm
@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_is_in_one_bin_and_no_bin_overflows(algorithm, seed):
    lengths = random_lengths(seed)
    bins = pack_sequences(lengths, 100, algorithm)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    assert all(0 < sum(lengths[index] for index in members) <= 100 for members in bins)
    assert all(members == sorted(members) for members in bins)


def test_concatenative_keeps_the_order():
    assert pack_sequences([5, 5, 1, 9, 2], 10, "concatenative") == [[0, 1], [2, 3], [4]]


def test_first_fit_decreasing_by_hand():
    lengths = [4, 8, 1, 4, 2, 1]
    assert as_lengths(pack_sequences(lengths, 10, FFD), lengths) == [[8, 2], [4, 4, 1, 1]]


def test_modified_first_fit_needs_fewer_bins_where_first_fit_is_bad():
    # The classic bad case of first-fit decreasing: 9 bins would do (six of 51+26+23, three of 27+27+23+23).
    lengths = [51] * 6 + [27] * 6 + [26] * 6 + [23] * 12
    assert len(pack_sequences(lengths, 100, FFD)) == 11
    assert len(pack_sequences(lengths, 100, MFFD)) == 10


@pytest.mark.parametrize("seed", range(20))
def test_modified_first_fit_never_needs_more_bins_than_first_fit(seed):
    lengths = random_lengths(seed)
    assert len(pack_sequences(lengths, 100, MFFD)) <= len(pack_sequences(lengths, 100, FFD))


@every_algorithm
def test_sequence_longer_than_the_capacity_is_named(algorithm):
    with pytest.raises(ValueError, match="sequence 1 has 11 tokens, more than the 10"):
        pack_sequences([3, 11], 10, algorithm)


@every_algorithm
def test_sequence_of_exactly_the_capacity_has_its_own_bin(algorithm):
    assert sorted(pack_sequences([10, 1], 10, algorithm)) == [[0], [1]]


@every_algorithm
def test_nothing_packs_into_nothing(algorithm):
    assert pack_sequences([], 10, algorithm) == []


def test_unknown_algorithm_is_refused():
    with pytest.raises(ValueError, match="best_fit"):
        pack_sequences([1], 10, "best_fit")


@pytest.mark.parametrize("equal_counts", [False, True])
@pytest.mark.parametrize("num_shards", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_shards_hold_everything_once_and_are_balanced(seed, num_shards, equal_counts):
    lengths = random_lengths(seed)
    shards = balance_by_tokens(lengths, num_shards, equal_counts=equal_counts)
    assert len(shards) == num_shards
    assert sorted(index for shard in shards for index in shard) == list(range(len(lengths)))
    sizes, totals = [len(shard) for shard in shards], [sum(lengths[i] for i in shard) for shard in shards]
    if equal_counts:
        assert max(sizes) - min(sizes) <= 1
    else:
        assert max(totals) - min(totals) <= max(lengths, default=0)


@pytest.mark.parametrize("seed", range(10))
def test_heaviest_of_two_shards_is_within_the_bound_of_the_best(seed):
    lengths = random_lengths(seed, most=10)
    heaviest = max(sum(lengths[i] for i in shard) for shard in balance_by_tokens(lengths, 2, equal_counts=False))
    subsets = (subset for size in range(len(lengths) + 1) for subset in combinations(lengths, size))
    best = min(max(sum(subset), sum(lengths) - sum(subset)) for subset in subsets)
    assert heaviest <= 7 / 6 * best


def test_equal_counts_by_hand():
    assert balance_by_tokens([9, 1, 1, 1], 2, equal_counts=False) == [[0], [1, 2, 3]]
    assert balance_by_tokens([9, 1, 1, 1], 2, equal_counts=True) == [[0, 3], [1, 2]]


def test_rank_with_fewer_micro_batches_splits_its_heaviest():
    lengths = [4, 4, 4, 2, 2, 6]
    assert equalize_bins([[[0], [1], [2]], [[3], [4, 5]]], lengths, multiple=1) == [[[0], [1], [2]], [[3], [5], [4]]]


def test_rank_that_cannot_split_appends_empty_micro_batches():
    assert equalize_bins([[[0], [1]], [[2]], []], [1, 1, 1], multiple=1) == [[[0], [1]], [[2], []], [[], []]]


def test_number_of_micro_batches_is_rounded_up():
    assert [len(bins) for bins in equalize_bins([[[0, 1, 2]], [[3], [4], [5]]], [1] * 6, multiple=4)] == [4, 4]


def test_zero_length_sequences_can_be_split():
    assert equalize_bins([[[0, 1]], [[2], [3]]], [0, 0, 5, 5], multiple=1)[0] == [[0], [1]]


@pytest.mark.parametrize("seed", range(10))
def test_equalising_keeps_every_sequence_on_its_rank(seed):
    lengths = random_lengths(seed)
    shards = balance_by_tokens(lengths, 3, equal_counts=False)
    bins = [
        [[shard[i] for i in members] for members in pack_sequences([lengths[i] for i in shard], 100, FFD)]
        for shard in shards
    ]
    equal = equalize_bins(bins, lengths, multiple=2)
    assert len({len(rank) for rank in equal}) == 1
    assert len(equal[0]) % 2 == 0
    assert [sorted(i for members in rank for i in members) for rank in equal] == shards
    assert equalize_bins([], lengths, multiple=2) == []
