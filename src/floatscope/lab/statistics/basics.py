"""What a list of losses must be before anything is computed from it, and what an interval is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from floatscope.errors import StudyError

ALPHA = 0.05
"""Largest probability of a false claim; two-sided intervals cover with 1 - ALPHA."""
DIVERGED_ABOVE = 1e100
"""Whatever its sign, no loss of a run that finished is as large."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """From `low` to `high`, covering what it is about with probability `confidence`."""

    low: float
    high: float
    confidence: float

    def contains(self, value: float) -> bool:
        """Whether `value` lies inside or on a limit; NaN and infinities do not."""
        return self.low <= value <= self.high

    def is_inside(self, margin: float) -> bool:
        """Whether both limits lie strictly between -margin and margin."""
        return -margin < self.low and self.high < margin

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def finished(losses: Iterable[float], name: str, at_least: int = 2) -> tuple[float, ...]:
    """The losses of an arm's finished runs as floats.

    Raises:
        StudyError: a loss is NaN, infinite or absurd (a diverged run enters no mean), or there are
            fewer than `at_least`.
    """
    values = tuple(float(loss) for loss in losses)
    for number, value in enumerate(values, start=1):
        if not abs(value) < DIVERGED_ABOVE:
            raise StudyError(
                f"{name}: run {number} of {len(values)} ended at {value}. A diverged run enters no "
                "mean: leave it out here and count it with divergence_rate()."
            )
    if len(values) < at_least:
        raise StudyError(
            f"{name}: finished runs: {len(values)}, and a spread needs at least {at_least}. Run "
            "more seeds; one run beside several of the baseline can be looked at with screening()."
        )
    return values


def standard_deviation(
    values: Iterable[float], name: str, losses: Iterable[float] | None = None
) -> float:
    """With n - 1 in the denominator. `losses` are what `values` were computed from, if not losses.

    Raises:
        StudyError: the values are equal, up to four units in the last place of the largest loss.
            Such a spread was missed, not measured, and would make every difference certain.
    """
    values = tuple(values)
    largest = max(abs(x) for x in (values if losses is None else losses))
    if max(values) - min(values) <= 4 * math.ulp(largest):
        raise StudyError(
            f"{name}: all {len(values)} values equal {values[0]:g}, so there is no spread to judge "
            "by. Either the seeds changed nothing (look for runs that were copied), or the arms "
            "are bit for bit the same, which needs no statistics: say so instead."
        )
    return statistics.stdev(values)


def checked_confidence(confidence: float) -> float:
    """A probability strictly between 0 and 1.

    Raises:
        StudyError: it is not.
    """
    if not 0 < confidence < 1:
        raise StudyError(f"confidence must lie between 0 and 1, as 0.95 does, not {confidence}")
    return confidence


def checked_margin(margin: float | None) -> float:
    """A margin that was stated, finite and above zero.

    Raises:
        StudyError: it is not.
    """
    if margin is None:
        raise StudyError(
            "no margin was stated, so nothing can be called equivalent or not worse. State in the "
            "plan, before the first run, which difference in loss would still be acceptable: what "
            "1 or 2 % more training would give, or 0.25 % of the loss, never a multiple of the "
            "measured spread."
        )
    if not 0 < margin < math.inf:
        raise StudyError(f"the margin must be a finite number above zero, not {margin}")
    return float(margin)
