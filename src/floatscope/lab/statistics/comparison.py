"""What a comparison of two arms is: a difference, how sure it is, and how that depends on n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floatscope.lab.statistics.basics import (
    ALPHA,
    Interval,
    checked_confidence,
    checked_margin,
)
from floatscope.lab.statistics.distributions import (
    dunnett_quantile,
    dunnett_tail,
    student_quantile,
    student_tail,
)

Method = Literal["paired", "Welch", "pooled", "Dunnett"]


@dataclass(frozen=True, kw_only=True)
class Design:
    """How n runs an arm become a standard error and its degrees of freedom."""

    method: Method
    variance_factor: float
    """n · Var(difference) / σ²: 1 for pairs, where σ is the differences', else 2."""
    df_factor: float
    """Degrees of freedom over (n - 1)."""
    loadings: tuple[float, ...] = ()
    """Of the arms that share the control, if intervals are to hold for all at once (Dunnett)."""

    def quantile(self, df: float, confidence: float) -> float:
        """Half of a two-sided interval, in standard errors."""
        if self.loadings:
            return dunnett_quantile(df, self.loadings, confidence)
        return student_quantile(df, (1 + confidence) / 2)

    @property
    def margin_confidence(self) -> float:
        """Of the two-sided interval that is compared with the margin.

        90 %, each limit being one-sided at 95 %. For several arms at once it is the simultaneous
        95 % interval itself: whatever is read off a region that covers all true differences with
        95 % is true with 95 %, in both directions and for all arms.
        """
        return 1 - ALPHA if self.loadings else 1 - 2 * ALPHA


PAIRED = Design(method="paired", variance_factor=1, df_factor=1)
"""n pairs."""
TWO_ARMS = Design(method="pooled", variance_factor=2, df_factor=2)
"""Two arms of n runs and equal spread."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An estimated difference and how sure it is."""

    design: Design
    difference: float
    """Candidate minus baseline; above zero is worse."""
    standard_error: float
    df: float
    standard_deviation: float
    """Of one paired difference, or of one run, pooled."""
    num_baseline: int
    num_candidate: int

    def interval(self, confidence: float = 1 - ALPHA) -> Interval:
        """At difference ± quantile · standard error. Simultaneous for Dunnett's comparisons."""
        quantile = self.design.quantile(self.df, checked_confidence(confidence))
        half = quantile * self.standard_error
        return Interval(
            low=self.difference - half, high=self.difference + half, confidence=confidence
        )

    def margin_interval(self) -> Interval:
        """What is compared with the margin; see `Design.margin_confidence`."""
        return self.interval(self.design.margin_confidence)

    def p_different(self) -> float:
        """Two-sided, for a true difference of zero. Adjusted for Dunnett's comparisons."""
        t = abs(self.difference) / self.standard_error
        if self.design.loadings:
            return dunnett_tail(self.df, self.design.loadings, t)
        return min(1.0, 2 * student_tail(self.df, t))

    def p_not_worse(self, margin: float | None) -> float:
        """One-sided, for a true difference of `margin`: small means not worse by as much.

        Below 0.05 exactly when the upper limit of `margin_interval` is below the margin.

        Raises:
            StudyError: no margin, or one that is not above zero.
        """
        return self._tail((checked_margin(margin) - self.difference) / self.standard_error)

    def p_equivalent(self, margin: float | None) -> float:
        """Of the two one-sided tests (TOST), the larger p.

        Below 0.05 exactly when `margin_interval` lies inside the margin.

        Source: Schuirmann 1987, J. Pharmacokin. Biopharm. 15:657; Berger and Hsu 1996, Statistical
        Science 11:283.

        Raises:
            StudyError: no margin, or one that is not above zero.
        """
        above = (checked_margin(margin) + self.difference) / self.standard_error
        return max(self._tail(above), self.p_not_worse(margin))

    def _tail(self, t: float) -> float:
        if self.design.loadings:
            return dunnett_tail(self.df, self.design.loadings, t)
        return student_tail(self.df, t)
