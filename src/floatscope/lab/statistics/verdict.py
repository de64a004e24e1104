"""The verdict on a candidate: one of five words, decided from two intervals and a margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floatscope.errors import StudyError
from floatscope.lab.statistics.basics import Interval, checked_margin
from floatscope.lab.statistics.comparison import Comparison, Method
from floatscope.lab.statistics.planning import MOST_RUNS, TARGET_POWER, Claim, runs_needed

Word = Literal[
    "not worse", "equivalent", "worse", "different but within the margin", "inconclusive"
]
SCREENING_UP_TO = 3
"""With so few runs in an arm a verdict is worded as screening."""


@dataclass(frozen=True, kw_only=True)
class RunsNeeded:
    """Pairs, or runs an arm, of a new study that would settle it with a power of 80 %.

    If the true difference is zero and the standard deviation is the measured one. None: more than
    `MOST_RUNS`.
    """

    not_worse: int | None
    equivalent: int | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the runs say about a candidate, and what it rests on."""

    word: Word
    difference: float
    """Candidate minus baseline; above zero is worse."""
    interval: Interval
    """Of the difference, 95 %: decides whether there is one."""
    margin_interval: Interval
    """Of the difference, 90 % (simultaneous 95 % for several arms): compared with the margin."""
    margin: float
    method: Method
    num_baseline: int
    num_candidate: int
    num_diverged: int
    """Of the candidate, beside the runs that the difference is of."""
    needed: RunsNeeded | None
    """Only if inconclusive for want of runs."""

    @property
    def is_screening(self) -> bool:
        return min(self.num_baseline, self.num_candidate) <= SCREENING_UP_TO

    @property
    def sentence(self) -> str:
        """The verdict in words, complete with margin, interval, method and number of runs."""
        runs = f"{self.num_candidate} runs against {self.num_baseline} of the baseline"
        if self.method == "paired":
            runs = f"{self.num_candidate} pairs"
        text = (
            f"{self._claim()}: the difference in loss is {self.difference:+.3g}, "
            f"{self._reason()} ({self.method}, {runs})."
        )
        if self.is_screening:
            text = f"Screening with n = {self._num_smaller}: {text[0].lower()}{text[1:]}"
        if self.num_diverged:
            text += f" Diverged beside them: {_count(self.num_diverged, 'run')} of the candidate, "
            text += "which therefore cannot be called as good."
        return text + (f" {self._what_would_settle_it(self.needed)}" if self.needed else "")

    @property
    def _num_smaller(self) -> int:
        return min(self.num_baseline, self.num_candidate)

    def _claim(self) -> str:
        margin = f"{self.margin:.3g}"
        return {
            "not worse": f"Not worse by {margin} or more",
            "equivalent": f"Equivalent within {margin}",
            "worse": "Worse",
            "different but within the margin": f"Different but within the margin of {margin}",
            "inconclusive": f"Inconclusive at a margin of {margin}",
        }[self.word]

    def _reason(self) -> str:
        zero, margin = _text(self.interval), _text(self.margin_interval)
        if self.word == "not worse":
            better = f", and its {zero} below zero" if self.interval.high < 0 else ""
            return f"and the upper limit of its {margin} lies below the margin{better}"
        if self.word == "equivalent":
            return f"and its {margin} lies inside the margin"
        if self.word == "worse":
            return (
                f"its {zero} above zero and not shown to be within the margin of {self.margin:.3g}"
            )
        if self.word == "inconclusive":
            return f"its {zero}" + ("" if margin == zero else f" and {margin}")
        return f"its {zero} excludes zero, and its {margin} lies inside the margin"

    def _what_would_settle_it(self, needed: RunsNeeded) -> str:
        unit = "pair" if self.method == "paired" else "run"
        text = (
            "With no true difference and the spread as measured, a new study would show not worse "
            f"with {_count(needed.not_worse, unit)} and equivalent with "
            f"{_count(needed.equivalent, unit)}{'' if unit == 'pair' else ' an arm'}, "
            f"in {TARGET_POWER:.0%} of cases"
        )
        if needed.not_worse is not None and needed.not_worse <= self._num_smaller:
            text += "; these runs were that many, so there may well be a difference"
        return text + "."


def decide(interval: Interval, margin_interval: Interval, margin: float) -> Word:
    """The rule of `verdict`, on a 95 % interval and the one to compare with the margin."""
    if margin_interval.is_inside(margin):
        return "different but within the margin" if interval.excludes_zero else "equivalent"
    if interval.low > 0:
        return "worse"
    return "not worse" if margin_interval.high < margin else "inconclusive"


def verdict(comparison: Comparison, margin: float | None, *, num_diverged: int = 0) -> Verdict:
    """Decide between five words, each of which excludes the others.

    Of the difference (candidate minus baseline) there are two intervals around one estimate: the
    95 % interval, and the narrower 90 % interval whose limits are one-sided at 95 %. In this order:

    1. 90 % interval inside (-margin, margin) (TOST holds), and the 95 % interval
       contains zero: *equivalent*; excludes it: *different but within the margin*.
    2. Otherwise, 95 % interval above zero: *worse*.
    3. Otherwise, upper limit of the 90 % interval below the margin (non-inferiority holds): *not
       worse*. A candidate that is better by more than the margin is found here.
    4. Otherwise *inconclusive*, with the number of runs that would settle it.

    So 1 and 3 together are exactly non-inferiority at one-sided 5 %, and with normal losses

    * a candidate that is worse by the margin or more is called anything but worse or inconclusive
      in at most 5 % of studies;
    * one that differs by the margin or more, either way, is called equivalent or different but
      within the margin in at most 5 %;
    * one without a true difference is called worse in at most 2.5 %, and worse or different in at
      most 5 %.

    Exactly so for paired comparisons, and for pooled ones of equal spread; approximately for
    Welch's (see `welch`). For Dunnett's comparisons both intervals are the simultaneous 95 %
    interval, and the rates hold for all arms together. They hold if the margin, the method and the
    number of runs were fixed before the first run. A wider margin keeps or strengthens every word
    but *inconclusive*, which it may turn into any but *worse*.

    With a diverged run the candidate cannot win: 1 and 3 give *inconclusive*, without a number.

    Args:
        comparison: from `paired`, `welch`, `pooled` or `dunnett`; they refuse a single run (see
            `screening`), diverged runs and zero spread
        margin: the largest difference that is still acceptable, in the unit of the loss
        num_diverged: runs of the candidate that diverged and are not in the comparison

    Source: Schuirmann 1987, J. Pharmacokin. Biopharm. 15:657; Berger and Hsu 1996, Statistical
    Science 11:283; Lakens 2017, Social Psychological and Personality Science 8:355.

    Raises:
        StudyError: no margin, one that is not a finite number above zero, or a negative count.
    """
    margin = checked_margin(margin)
    if num_diverged < 0:
        raise StudyError(f"{num_diverged} runs cannot have diverged")
    interval, margin_interval = comparison.interval(), comparison.margin_interval()
    word, needed = decide(interval, margin_interval, margin), None
    if num_diverged and word != "worse":
        word = "inconclusive"
    elif word == "inconclusive":
        needed = RunsNeeded(
            not_worse=_needed("not worse", comparison, margin),
            equivalent=_needed("equivalent", comparison, margin),
        )
    return Verdict(
        word=word,
        difference=comparison.difference,
        interval=interval,
        margin_interval=margin_interval,
        margin=margin,
        method=comparison.design.method,
        num_baseline=comparison.num_baseline,
        num_candidate=comparison.num_candidate,
        num_diverged=num_diverged,
        needed=needed,
    )


def _needed(claim: Claim, comparison: Comparison, margin: float) -> int | None:
    return runs_needed(
        claim,
        comparison.design,
        standard_deviation=comparison.standard_deviation,
        margin=margin,
    )


def _count(number: int | None, unit: str) -> str:
    """The number and its unit, "1 run", "3 runs"; None is more than `MOST_RUNS`."""
    if number is None:
        return f"more than {MOST_RUNS} {unit}s"
    return f"{number} {unit}" + ("s" if number != 1 else "")


def _text(interval: Interval) -> str:
    return f"{interval.confidence:.0%} interval {interval.low:+.3g} to {interval.high:+.3g}"
