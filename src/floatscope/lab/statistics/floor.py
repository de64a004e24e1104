"""The noise floor of one recipe, and whether one new run lies inside it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from floatscope.errors import StudyError
from floatscope.lab.statistics.basics import (
    ALPHA,
    Interval,
    checked_confidence,
    finished,
    standard_deviation,
)
from floatscope.lab.statistics.distributions import student_quantile


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """How far runs part that differ in nothing that matters."""

    num_runs: int
    mean: float
    standard_deviation: float
    """Of a single run, with n - 1 in the denominator."""
    standard_deviation_limits: Interval
    """Of the true standard deviation. Wide: at n = 3, from 0.52 to 6.3 times the measured one."""
    minimum: float
    maximum: float

    @property
    def range(self) -> float:
        """Largest minus smallest loss."""
        return self.maximum - self.minimum


def noise_floor(losses: Iterable[float], confidence: float = 1 - ALPHA) -> NoiseFloor:
    """Mean, standard deviation with its confidence limits, and range.

    With ν = n - 1 the limits of σ are s √(ν / χ²) at the upper and the lower chi-square quantile.
    They hold for normal losses and are sensitive to outliers.

    Source: NIST/SEMATECH e-Handbook of Statistical Methods, section 7.2.3.1.

    Raises:
        StudyError: fewer than two runs, a diverged one, or no spread at all.
    """
    from scipy.special import gammainccinv, gammaincinv

    values = finished(losses, "noise floor")
    s = standard_deviation(values, "noise floor")
    half_df, outside = (len(values) - 1) / 2, (1 - checked_confidence(confidence)) / 2
    return NoiseFloor(
        num_runs=len(values),
        mean=statistics.fmean(values),
        standard_deviation=s,
        standard_deviation_limits=Interval(
            low=s * math.sqrt(half_df / gammainccinv(half_df, outside)),
            high=s * math.sqrt(half_df / gammaincinv(half_df, outside)),
            confidence=confidence,
        ),
        minimum=min(values),
        maximum=max(values),
    )


def prediction_interval(
    losses: Iterable[float], *, num_new: int = 1, confidence: float = 1 - ALPHA
) -> Interval:
    """Where the mean of `num_new` further runs of the same recipe will lie.

    mean ± t₍ν₎ s √(1/m + 1/n) with ν = n - 1. "Is this one run inside what fp32 does?" is this
    interval at m = 1.

    Source: Hahn 1970, JASA 65:1668.

    Raises:
        StudyError: fewer than two runs, a diverged one, no spread, or `num_new` below 1.
    """
    values = finished(losses, "prediction interval")
    if num_new < 1:
        raise StudyError(f"a prediction is about at least one new run, not {num_new}")
    s = standard_deviation(values, "prediction interval")
    t = student_quantile(len(values) - 1, (1 + checked_confidence(confidence)) / 2)
    mean, half = statistics.fmean(values), t * s * math.sqrt(1 / num_new + 1 / len(values))
    return Interval(low=mean - half, high=mean + half, confidence=confidence)


@dataclass(frozen=True, kw_only=True)
class Screening:
    """One run beside the baseline's: a look, no verdict."""

    loss: float
    interval: Interval
    """For one new run of the baseline."""
    num_baseline: int

    @property
    def is_inside(self) -> bool:
        return self.interval.contains(self.loss)

    @property
    def sentence(self) -> str:
        """Never says that the recipe is as good or worse: one run cannot."""
        low, high = self.interval.low, self.interval.high
        place = "inside" if self.is_inside else "below" if self.loss < low else "above"
        return (
            f"Screening, no verdict: this one run ended at {self.loss:.5g}, {place} the "
            f"{self.interval.confidence:.0%} interval for one more run of the baseline, {low:.5g} "
            f"to {high:.5g} (n = {self.num_baseline})."
        )


def screening(loss: float, baseline: Iterable[float], confidence: float = 1 - ALPHA) -> Screening:
    """Look at a single run of a recipe; see `prediction_interval`.

    Raises:
        StudyError: the run diverged, or the baseline gives no interval.
    """
    baseline = tuple(baseline)
    (loss,) = finished([loss], "screening", at_least=1)
    interval = prediction_interval(baseline, confidence=confidence)
    return Screening(loss=loss, interval=interval, num_baseline=len(baseline))
