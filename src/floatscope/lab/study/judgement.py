"""What a study says to its question: data alone; `judge.py` fills it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floatscope.lab.statistics import Interval, Pairing, RunsNeeded, Screening
from floatscope.lab.statistics.verdict import Word
from floatscope.lab.study.determinism import Determinism
from floatscope.lab.study.question import Question

Stated = Literal["never", "before the runs", "after some of the runs", "after the runs"]
DONE, FAILED, UNDECIDED = 0, 3, 4
"""Exit statuses: all claims hold or none was made, one does not hold, one is undecided."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """An arm's speed over the baseline's, as measured and at equal loss."""

    raw: float
    """Tokens per second over the baseline's: median over pairs."""
    lowest: float
    highest: float
    num_pairs: int
    emulated: bool
    """Whether 16-bit products were emulated, which says nothing about a device that has them."""
    extra_steps: float | None
    """Steps more than the baseline's for the same loss, d / |dL/dstep|; None where the baseline's
    loss no longer falls."""
    matched: float | None
    """raw · T / (T + extra steps)."""
    matched_interval: Interval | None
    """From the 95 % interval of the loss difference; the spread of `raw` is not in it."""


@dataclass(frozen=True, kw_only=True)
class ArmJudgement:
    """What the runs say about one arm."""

    recipe: str
    word: Word | None
    """None: no verdict, and `sentence` says why."""
    holds: bool | None
    """Whether the study's claim holds for this arm; None: undecided."""
    sentence: str
    difference: float | None
    """Candidate minus baseline, in nats a token; above zero is worse."""
    interval: Interval | None
    margin_interval: Interval | None
    method: str | None
    """Of the comparison that was made."""
    p_claim: float | None
    p_adjusted: float | None
    """Of the claim, after the correction for several arms; None where none is needed."""
    pairs: tuple[int, ...]
    """Seeds that both arms finished."""
    num_runs: int
    num_diverged: int
    divergence: Interval | None
    """95 % limits of the probability that a run diverges."""
    needed: RunsNeeded | None
    pairing: Pairing | None
    """Whether pairing paid; None below three pairs."""
    screening: Screening | None
    """Where there is one run: whether it lies where one more run of the baseline would."""
    speed: Speed | None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a study says to its question."""

    question: Question | None
    stated: Stated
    """When the question was stated."""
    asked: str | None
    """The same as a time: UTC, ISO 8601."""
    refusal: str | None
    """Why there is no verdict on any arm; None if there may be one."""
    changes: tuple[str, ...]
    """What of the plan was changed after runs had been started under it."""
    slope: float | None
    """By how many nats a step the baseline's loss falls at the end; None if unknown."""
    margin: float | None
    """In nats a token."""
    margin_says: str
    """Where it comes from."""
    arms: tuple[ArmJudgement, ...]
    limits: tuple[str, ...]
    """What a reader must know before believing a verdict."""
    determinism: Determinism | None
    """None if nothing was repeated."""

    @property
    def status(self) -> int:
        """Exit status: 0, 3 or 4."""
        if self.question is None:
            return DONE
        if any(arm.holds is False for arm in self.arms):
            return FAILED
        decided = bool(self.arms) and all(arm.holds for arm in self.arms)
        return DONE if decided else UNDECIDED
