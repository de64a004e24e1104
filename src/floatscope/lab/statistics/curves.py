"""Whole loss curves: the band in which the baseline's next curve stays.

Evaluation points of one run are no independent samples; no test is made over them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from floatscope.errors import StudyError
from floatscope.lab.statistics.basics import (
    ALPHA,
    checked_confidence,
    finished,
    standard_deviation,
)
from floatscope.lab.statistics.distributions import student_quantile


@dataclass(frozen=True, kw_only=True)
class CurveBand:
    """A prediction band for one more run of the baseline, one number an evaluation point."""

    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    num_runs: int
    confidence: float
    """That one more curve stays inside at all points."""

    def first_exit(self, curve: Sequence[float]) -> int | None:
        """Index of the first evaluation point outside the band, above or below; None if inside.

        A NaN or infinite loss is outside. A curve that stops early (its run diverged) is looked at
        as far as it goes.

        Raises:
            StudyError: the curve is empty or has more points than the band.
        """
        if not 0 < len(curve) <= len(self.mean):
            raise StudyError(
                f"the curve has {len(curve)} evaluation points and the band {len(self.mean)}; both "
                "must be evaluated at the same steps"
            )
        for k, loss in enumerate(curve):
            if not self.low[k] <= loss <= self.high[k]:
                return k
        return None


def curve_band(curves: Sequence[Sequence[float]], confidence: float = 1 - ALPHA) -> CurveBand:
    """Pointwise prediction intervals with a Bonferroni quantile over the K evaluation points.

    mean ± t₍ν₎ s √(1 + 1/n) at each point, with (1 - confidence) / K outside at each. However the
    points hang together, one more curve leaves the band with at most 1 - confidence. At n = 3 and
    K = 20 the quantile is 20, not 4.3: have eight baseline runs or more.

    Source: Hahn 1970, JASA 65:1668; Dunn 1961, JASA 56:52, for the quantile.

    Raises:
        StudyError: fewer than two curves, no points, curves of different lengths, a diverged
            curve, or a point at which all runs are equal.
    """
    lengths = {len(curve) for curve in curves}
    if len(lengths) != 1 or lengths == {0}:
        raise StudyError(
            "a band needs curves with the same evaluation points, at least one; these have "
            f"{', '.join(map(str, sorted(lengths))) or 'none'}"
        )
    (num_points,) = lengths
    outside = (1 - checked_confidence(confidence)) / num_points
    factor = math.sqrt(1 + 1 / len(curves))
    means, halves = [], []
    for k, losses in enumerate(zip(*curves, strict=True)):
        name = f"baseline curves at evaluation point {k + 1}"
        values = finished(losses, name)
        quantile = student_quantile(len(values) - 1, 1 - outside / 2)
        means.append(statistics.fmean(values))
        halves.append(quantile * standard_deviation(values, name) * factor)
    return CurveBand(
        mean=tuple(means),
        low=tuple(m - h for m, h in zip(means, halves, strict=True)),
        high=tuple(m + h for m, h in zip(means, halves, strict=True)),
        num_runs=len(curves),
        confidence=confidence,
    )
