"""From a study's question and its runs to verdicts, or to the reason why there is none.

One number a run, its endpoint, and one a seed: a seed's one-ulp reruns of the baseline are averaged
before anything is compared, and repetitions are left out. A diverged run enters no mean and its arm
cannot win.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from floatscope.lab.statistics import ALPHA, fixed_sequence, holm
from floatscope.lab.study.compare_arms import Arms, judge_arm
from floatscope.lab.study.determinism import determinism
from floatscope.lab.study.folder import StudyFolder
from floatscope.lab.study.judgement import ArmJudgement, Judgement
from floatscope.lab.study.margin import end_slope, in_nats
from floatscope.lab.study.question import Question
from floatscope.lab.study.runs import RunSummary
from floatscope.lab.study.trust import NOT_ASKED, PlanCheck, check_plan, mixed


def judge(folder: StudyFolder, runs: Sequence[RunSummary]) -> Judgement:
    """What the finished runs say to the study's question.

    Args:
        folder: the study.
        runs: its finished runs, repetitions not among them.

    Raises:
        StudyError: a record is damaged.
    """
    question = folder.plan.resolved().question
    if question is None:
        return _judgement(folder, PlanCheck(stated="never"), refusal=NOT_ASKED)
    check = check_plan(folder, runs)
    limits = [check.limit] if check.limit else []
    limits += mixed(question, runs)
    refusal = check.refusal or _not_yet(folder, question, runs)
    if refusal is not None:
        return _judgement(folder, check, question=question, refusal=refusal, limits=limits)
    baseline = [r for r in runs if r.recipe == question.baseline]
    slope = end_slope([r for r in baseline if not r.ulp_rerun], folder.plan.train.steps)
    ended = [loss for r in baseline if math.isfinite(loss := r.endpoint(question.last_evaluations))]
    margin, says = in_nats(
        question.margin,
        loss=statistics.fmean(ended),
        slope=slope,
        steps=folder.plan.train.steps,
    )
    if margin is None:
        return _judgement(folder, check, question=question, refusal=says, limits=limits)
    arms = Arms.of(question, runs, margin=margin, slope=slope, steps=folder.plan.train.steps)
    judged = together(question, [judge_arm(arms, name) for name in question.arms])
    return replace(
        _judgement(folder, check, question=question, limits=limits),
        slope=slope,
        margin=margin,
        margin_says=says,
        arms=tuple(judged),
    )


def _judgement(
    folder: StudyFolder,
    check: PlanCheck,
    *,
    question: Question | None = None,
    refusal: str | None = None,
    limits: Sequence[str] = (),
) -> Judgement:
    return Judgement(
        question=question,
        stated=check.stated,
        asked=folder.asked,
        refusal=refusal,
        changes=check.changes,
        slope=None,
        margin=None,
        margin_says="",
        arms=(),
        limits=tuple(limits),
        determinism=determinism(folder),
    )


def _not_yet(folder: StudyFolder, question: Question, runs: Sequence[RunSummary]) -> str | None:
    """Why nothing can be compared, now or ever; None if something can."""
    name = question.baseline
    if name not in folder.plan.recipes:
        return (
            f"there is no baseline: {name} is not among the recipes "
            f"{', '.join(folder.plan.recipes)}. Run the study with it; --reuse takes over what is "
            "there."
        )
    if not question.arms:
        return f"there is nothing to compare: {name} is the only recipe."
    finished, planned = folder.num_finished(), len(folder.plan.runs())
    if finished < planned:
        return (
            f"{finished} of {planned} runs have ended. The plan fixed n = {question.n}: a look at "
            "part of the runs, with the choice of going on, makes the error rates wrong."
        )
    baseline = [r.endpoint(question.last_evaluations) for r in runs if r.recipe == name]
    if not any(map(math.isfinite, baseline)):
        return f"all {len(baseline)} runs of the baseline {name} diverged."
    return None


def together(question: Question, arms: Sequence[ArmJudgement]) -> list[ArmJudgement]:
    """The arms' claims tested together, as the plan says; an arm without a test fails to show its.

    Dunnett's comparisons hold for all arms at once already.
    """
    if len(arms) < 2 or all(arm.method in (None, "Dunnett") for arm in arms):
        return list(arms)
    p_values = [1.0 if arm.p_claim is None else arm.p_claim for arm in arms]
    if question.several == "holm":
        adjusted = holm(p_values)
        return [_corrected(arm, p) for arm, p in zip(arms, adjusted, strict=True)]
    holds = fixed_sequence(p_values)
    return [_in_turn(arm, holds[k]) for k, arm in enumerate(arms)]


def _corrected(arm: ArmJudgement, p: float) -> ArmJudgement:
    if arm.p_claim is None:
        return arm
    arm = replace(arm, p_adjusted=p)
    if not arm.holds or p < ALPHA:
        return arm
    text = f" By Holm's correction for several arms p = {p:.2g}, so the claim is not shown."
    return replace(arm, holds=None, sentence=arm.sentence + text)


def _in_turn(arm: ArmJudgement, holds: bool) -> ArmJudgement:
    if not arm.holds or holds:
        return arm
    text = " The claim of an arm before it in the plan's order was not shown, so this one is not."
    return replace(arm, holds=None, sentence=arm.sentence + text)
