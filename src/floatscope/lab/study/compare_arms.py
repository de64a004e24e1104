"""One arm against the baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from floatscope.errors import StudyError
from floatscope.lab.statistics import (
    POOLABLE_BELOW,
    Comparison,
    Pairing,
    Verdict,
    divergence_rate,
    dunnett,
    paired,
    pairing,
    pooled,
    screening,
    spread_ratio,
    verdict,
    welch,
)
from floatscope.lab.study.judgement import ArmJudgement, Speed
from floatscope.lab.study.question import Claim, Question
from floatscope.lab.study.runs import RunSummary
from floatscope.lab.study.speed import speed
from floatscope.lab.study.trust import arm_refusal

Losses = Mapping[int, float]
"""Endpoints by seed."""


@dataclass(frozen=True, kw_only=True)
class Arms:
    """What a comparison needs to know of a study."""

    question: Question
    runs: dict[str, list[RunSummary]]
    """Of the baseline and of each arm; one-ulp reruns among them."""
    margin: float
    slope: float | None
    steps: int

    @staticmethod
    def of(
        question: Question,
        runs: Sequence[RunSummary],
        *,
        margin: float,
        slope: float | None,
        steps: int,
    ) -> Arms:
        names = (question.baseline, *question.arms)
        by_arm = {name: [r for r in runs if r.recipe == name] for name in names}
        return Arms(question=question, runs=by_arm, margin=margin, slope=slope, steps=steps)

    @property
    def baseline(self) -> list[RunSummary]:
        return self.runs[self.question.baseline]

    def losses(self, name: str) -> Losses:
        """Endpoints of the runs that did not diverge, by seed; reruns of a seed averaged."""
        found: dict[int, list[float]] = {}
        for run in self.runs[name]:
            loss = run.endpoint(self.question.last_evaluations)
            if math.isfinite(loss):
                found.setdefault(run.seed, []).append(loss)
        return {seed: statistics.fmean(losses) for seed, losses in sorted(found.items())}


def judge_arm(arms: Arms, name: str) -> ArmJudgement:
    """What the runs say about the arm `name`, all of whose runs have ended."""
    nothing, mine = _undecided(arms, name), arms.losses(name)
    refusal = arm_refusal(name, arms.runs[name], arms.baseline)
    if refusal is not None:
        return replace(nothing, sentence=f"No verdict: {refusal}")
    if not mine:
        return _all_diverged(nothing)
    if len(mine) == 1:
        return _screened(nothing, arms, *mine.values())
    try:
        comparison, says = _compare(arms, name, nothing.pairs)
    except StudyError as error:
        return replace(nothing, sentence=f"No verdict: {error}")
    decided = verdict(comparison, arms.margin, num_diverged=nothing.num_diverged)
    return replace(
        nothing,
        word=decided.word,
        holds=_holds(decided, arms.question.claim),
        sentence=decided.sentence + says + _of_pairs(nothing, arms),
        difference=decided.difference,
        interval=decided.interval,
        margin_interval=decided.margin_interval,
        method=decided.method,
        p_claim=_p_claim(comparison, arms),
        needed=decided.needed,
        speed=_speed(arms, name, comparison),
    )


def _undecided(arms: Arms, name: str) -> ArmJudgement:
    """What can be said of an arm without a comparison."""
    runs, mine, theirs = arms.runs[name], arms.losses(name), arms.losses(arms.question.baseline)
    pairs = tuple(seed for seed in mine if seed in theirs)
    num_diverged = len(runs) - len(mine)
    return ArmJudgement(
        recipe=name,
        word=None,
        holds=None,
        sentence="",
        difference=statistics.fmean(mine[s] - theirs[s] for s in pairs) if pairs else None,
        interval=None,
        margin_interval=None,
        method=None,
        p_claim=None,
        p_adjusted=None,
        pairs=pairs,
        num_runs=len(runs),
        num_diverged=num_diverged,
        divergence=divergence_rate(num_diverged, len(runs)) if runs else None,
        needed=None,
        pairing=_pairing(mine, theirs, pairs),
        screening=None,
        speed=_speed(arms, name, None),
    )


def _speed(arms: Arms, name: str, comparison: Comparison | None) -> Speed | None:
    baseline = [run for run in arms.baseline if not run.ulp_rerun]
    return speed(
        baseline, arms.runs[name], comparison=comparison, slope=arms.slope, steps=arms.steps
    )


def _all_diverged(nothing: ArmJudgement) -> ArmJudgement:
    rate = nothing.divergence
    at_least = "" if rate is None else f" The rate is {rate.low:.0%} or more (95 %)."
    return replace(
        nothing,
        holds=False,
        sentence=(
            f"All {nothing.num_runs} runs diverged: there is no loss to compare, and the claim "
            f"does not hold.{at_least}"
        ),
    )


def _screened(nothing: ArmJudgement, arms: Arms, loss: float) -> ArmJudgement:
    """One run beside several of the baseline: a look, no verdict."""
    among = list(arms.losses(arms.question.baseline).values())
    what = "over seeds"
    if len(among) < 2:  # one seed: its reruns
        among = [r.endpoint(arms.question.last_evaluations) for r in arms.baseline]
        what = "of this seed with initial weights moved by an ulp, which is no spread of seeds"
    try:
        seen = screening(loss, among)
    except StudyError as error:
        return replace(
            nothing, sentence=f"Screening, no verdict: one run, and no interval. {error}"
        )
    sentence = f"{seen.sentence} The interval is {what}."
    return replace(nothing, screening=seen, sentence=sentence)


def _compare(arms: Arms, name: str, pairs: Sequence[int]) -> tuple[Comparison, str]:
    """The comparison that the plan names, and what is to be said if it was another."""
    question = arms.question
    mine, theirs = arms.losses(name), arms.losses(question.baseline)
    if question.method == "paired":
        if len(pairs) < 2:
            raise StudyError(
                f"{len(pairs)} pair{'s' * (len(pairs) != 1)}: the other runs of the same seeds "
                "diverged, and pairs need both."
            )
        return paired([theirs[s] for s in pairs], [mine[s] for s in pairs]), ""
    a, b = list(theirs.values()), list(mine.values())
    others = {k: list(arms.losses(k).values()) for k in question.arms if k != name}
    if question.method == "welch":
        return welch(a, b), _unequal(a, b)
    every = [a, b, *others.values()]
    diverged = any(len(arms.losses(k)) < len({r.seed for r in arms.runs[k]}) for k in arms.runs)
    if diverged or not all(len(losses) > 1 for losses in every):
        return welch(
            a, b
        ), " Compared by Welch, because runs diverged and arms are not pooled then."
    ratio = spread_ratio(every)
    if ratio >= POOLABLE_BELOW:
        return welch(a, b), (
            f" Compared by Welch: the arms' standard deviations differ by a factor of {ratio:.2g}, "
            f"and arms are pooled below {POOLABLE_BELOW:g}."
        )
    if question.method == "pooled":
        return pooled(a, b, *others.values()), _unequal(a, b)
    names = list(question.arms)
    each = [list(arms.losses(k).values()) for k in names]
    return dunnett(a, *each)[names.index(name)], _unequal(a, b)


def _unequal(a: Sequence[float], b: Sequence[float]) -> str:
    if len(a) == len(b):
        return ""
    return f" The arms have different numbers of runs, {len(b)} against {len(a)}."


def _of_pairs(arm: ArmJudgement, arms: Arms) -> str:
    """Which planned pairs are missing."""
    planned, n = arms.question.n, len(arm.pairs)
    if arms.question.method != "paired" or planned is None or n == planned:
        return ""
    return f" Of {planned} planned pairs {n} have both runs; in the others one diverged."


def _holds(decided: Verdict, claim: Claim) -> bool | None:
    """Whether the claim is shown, refuted, or neither."""
    inside = decided.word in ("equivalent", "different but within the margin")
    shown = {
        "not worse": inside or decided.word == "not worse",
        "equivalent": inside,
        "worse": decided.interval.low > 0,
    }
    outside = max(decided.interval.low, -decided.interval.high) >= decided.margin
    refuted = {
        "not worse": decided.word == "worse",
        "equivalent": decided.word == "worse" or outside,
        "worse": inside or decided.word == "not worse",
    }
    return True if shown[claim] else False if refuted[claim] else None


def _p_claim(comparison: Comparison, arms: Arms) -> float:
    if arms.question.claim == "not worse":
        return comparison.p_not_worse(arms.margin)
    if arms.question.claim == "equivalent":
        return comparison.p_equivalent(arms.margin)
    return comparison.p_different() if comparison.difference > 0 else 1.0


def _pairing(mine: Losses, theirs: Losses, pairs: Sequence[int]) -> Pairing | None:
    if len(pairs) < 3:
        return None
    try:
        return pairing([theirs[s] for s in pairs], [mine[s] for s in pairs])
    except StudyError:  # an arm without spread
        return None
