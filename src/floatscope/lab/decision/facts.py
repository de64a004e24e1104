"""What is known of each arm when a recipe is chosen, each number with its place in the records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from floatscope.formats import BlockFormat, Format
from floatscope.lab.decision.cite import Records
from floatscope.lab.decision.records import Evidence
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.study.folder import StudyFolder
from floatscope.lab.study.judgement import ArmJudgement
from floatscope.lab.study.summary import Arm, Summary
from floatscope.recipes import Recipe

EARLY = "[0:100]"
"""Rows of the first hundred steps."""
LATE = "[-100:]"


@dataclass(frozen=True, kw_only=True)
class ArmFacts:
    """One recipe of a study."""

    name: str
    recipe: Recipe
    arm: Arm
    judged: ArmJudgement | None
    """None for the baseline, and where there is no verdict at all."""
    runs: tuple[tuple[RunPlan, str], ...]
    """Finished runs and their folders from the study's, repetitions and reruns not among them."""

    @property
    def needs_scaling(self) -> bool:
        return self.recipe.loss_scaling is not None

    @property
    def bits(self) -> int:
        """Of the widest operand in products of weights."""
        return operand_bits(self.recipe)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A study, its arms and its records."""

    folder: StudyFolder
    summary: Summary
    records: Records
    arms: tuple[ArmFacts, ...]

    @property
    def baseline(self) -> str:
        question = self.summary.judgement.question
        return self.summary.baseline if question is None else question.baseline

    def arm(self, name: str) -> ArmFacts | None:
        return next((arm for arm in self.arms if arm.name == name), None)

    def each_run(self, arm: ArmFacts, what: str, table: str, field: str) -> list[Evidence]:
        """The same field of each run of an arm."""
        return [
            self.records.cite(f"{what}, {plan.label}", f"{path}/{table}", field)
            for plan, path in arm.runs
        ]


def gather(folder: StudyFolder, summary: Summary) -> Facts:
    """The facts of a study's finished runs."""
    judged = {arm.recipe: arm for arm in summary.judgement.arms}
    finished = [
        (plan, found.folder.relative_to(folder.path).as_posix())
        for plan, found in folder.finished()
        if not plan.ulp_rerun
    ]
    return Facts(
        folder=folder,
        summary=summary,
        records=Records(folder.path),
        arms=tuple(
            ArmFacts(
                name=arm.recipe,
                recipe=folder.plan.recipe_called(arm.recipe),
                arm=arm,
                judged=judged.get(arm.recipe),
                runs=tuple((p, path) for p, path in finished if p.recipe.name == arm.recipe),
            )
            for arm in summary.arms
        ),
    )


def mean_of(evidence: Sequence[Evidence]) -> float:
    """The mean of numbers that were cited.

    Raises:
        TypeError: one is no number.
    """
    return statistics.fmean(float(e.value) for e in evidence)  # type: ignore[arg-type]


def operand_bits(named: Recipe) -> int:
    """Bits of an element of the widest operand in products of weights."""
    if named.operands is None:
        return 32 if named.products == "fp32" else 16
    three = (named.operands.activation, named.operands.weight, named.operands.gradient)
    return max(_width(operand.form) for operand in three)


def _width(form: Format) -> int:
    return form.element.width if isinstance(form, BlockFormat) else form.width
