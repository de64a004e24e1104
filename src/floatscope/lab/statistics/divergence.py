"""Divergence, an endpoint of its own: runs that diverged are counted, not averaged."""

from __future__ import annotations

from floatscope.errors import StudyError
from floatscope.lab.statistics.basics import ALPHA, Interval, checked_confidence


def divergence_rate(num_diverged: int, num_runs: int, confidence: float = 1 - ALPHA) -> Interval:
    """Two-sided exact interval of the probability that a run diverges.

    Beta quantiles: of (k, n - k + 1) below, 0 if k = 0; of (k + 1, n - k) above, 1 if k = n.
    Covers with at least `confidence`.

    Source: Clopper and Pearson 1934, Biometrika 26:404.

    Raises:
        StudyError: no runs, or a count that is not between 0 and `num_runs`.
    """
    outside = (1 - checked_confidence(confidence)) / 2
    _check(num_diverged, num_runs)
    return Interval(
        low=1 - _upper(num_runs - num_diverged, num_runs, outside),
        high=_upper(num_diverged, num_runs, outside),
        confidence=confidence,
    )


def divergence_bound(num_diverged: int, num_runs: int, confidence: float = 1 - ALPHA) -> float:
    """The rate above which the count rules rates out, one-sided.

    0 of n rules out rates above 1 - 0.05^(1/n): 63 % at n = 3, 26 % at n = 10. 1 if all diverged.

    Source: Clopper and Pearson 1934, Biometrika 26:404.

    Raises:
        StudyError: as `divergence_rate`.
    """
    outside = 1 - checked_confidence(confidence)
    _check(num_diverged, num_runs)
    return _upper(num_diverged, num_runs, outside)


def _upper(count: int, num_runs: int, outside: float) -> float:
    from scipy.special import betaincinv

    if count == num_runs:
        return 1.0
    return float(betaincinv(count + 1, num_runs - count, 1 - outside))


def _check(num_diverged: int, num_runs: int) -> None:
    if num_runs < 1:
        raise StudyError(f"a rate needs at least one run, not {num_runs}")
    if not 0 <= num_diverged <= num_runs:
        raise StudyError(f"{num_diverged} of {num_runs} runs cannot have diverged")
