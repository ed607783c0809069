"""The probability that at least one of k answers is right."""

from collections.abc import Sequence
from math import comb


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate 1 - C(n - c, k) / C(n, k) from n samples of which c are right (arXiv:2107.03374)."""
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} correct answers out of {num_samples}")
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} cannot be estimated from {num_samples} samples")
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def mean_pass_at_k(correct: Sequence[Sequence[bool]], k: int) -> float:
    """pass@k averaged over problems; `correct[i]` holds the samples of problem i, a failed grade counting as False."""
    if not correct:
        raise ValueError("pass@k of no problems is undefined")
    return sum(pass_at_k(len(samples), sum(samples), k) for samples in correct) / len(correct)
