from itertools import combinations

import pytest

from nemo_rl.algorithms.pass_at_k import mean_pass_at_k, pass_at_k


@pytest.mark.parametrize(("k", "expected"), [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)])
def test_one_right_of_four(k, expected):
    assert pass_at_k(4, 1, k) == pytest.approx(expected)


@pytest.mark.parametrize("correct", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_estimate_is_the_share_of_subsets_with_a_right_answer(correct, k):
    answers = [True] * correct + [False] * (5 - correct)
    subsets = list(combinations(answers, k))
    assert pass_at_k(5, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_mean_over_problems_counts_failed_ones_as_zero():
    assert mean_pass_at_k([[True, False], [False, False]], 1) == pytest.approx(0.25)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match=r"correct answers out of|cannot be estimated"):
        pass_at_k(n, c, k)


def test_mean_of_no_problems_is_refused():
    with pytest.raises(ValueError, match="no problems"):
        mean_pass_at_k([], 1)
