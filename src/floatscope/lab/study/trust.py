"""What must be known before a verdict is believed: plans changed afterwards, mixed machines.

A refusal says that there is no verdict and why; a limit is said beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from floatscope.lab.run.environment import Environment
from floatscope.lab.study.folder import PLANS, StudyFolder, changes
from floatscope.lab.study.judgement import Stated
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.question import Question
from floatscope.lab.study.runs import RunSummary

NOT_ASKED = (
    "the study was run without a question, so no margin was stated before its runs. State one in "
    "the next study's file, in a table [question]; for this one floatscope study ask FOLDER FILE "
    "states it after the runs, and says so."
)

_SEEN: dict[str, Callable[[Environment], str]] = {
    "processor": lambda e: e.processor,
    "version of Torch": lambda e: e.packages.get("torch", "unknown"),
    "commit": lambda e: (e.commit or "unknown")[:10],
}
_CONFOUNDS = ("processor", "version of Torch")
"""What changes losses by itself: an arm of which all differs from the baseline is refused."""


FEW = 3
"""Up to so many pairs a verdict is called screening."""


def foreseen(plan: StudyPlan) -> Iterator[str]:
    """What is known of a plan's verdicts before its first run."""
    question, n = plan.question, len(plan.seeds)
    if plan.stress is not None:
        return
    if question is None:
        yield "no question is stated, so there will be no verdict"
    elif question.baseline not in plan.recipes:
        yield (
            f"the baseline {question.baseline} is not among the recipes, so there will be no "
            "verdict"
        )
    elif len(plan.recipes) < 2:
        yield f"{question.baseline} is the only recipe, so there will be no verdict"
    elif n == 1:
        yield "one seed: there will be a look at each recipe, called screening, and no verdict"
    elif n <= FEW:
        yield (
            f"{n} seeds: verdicts will be called screening; five decide a margin of about 1.6 "
            "standard deviations of a paired difference, ten of 1.0"
        )


@dataclass(frozen=True, kw_only=True)
class PlanCheck:
    """When the plan was stated, and whether it still is what runs were started under."""

    stated: Stated
    changes: tuple[str, ...] = ()
    refusal: str | None = None
    limit: str | None = None


def check_plan(folder: StudyFolder, runs: Sequence[RunSummary]) -> PlanCheck:
    """Compare the plan with those that runs were started under."""
    now = folder.asked_sha256
    others = [set(run.study_sha256s or (None,)) - {now} for run in runs]
    num_older = sum(map(bool, others))
    stated: Stated = "before the runs"
    if num_older:
        stated = "after the runs" if num_older == len(runs) else "after some of the runs"
    earlier = list(dict.fromkeys(s for other in others for s in other if s is not None))
    if earlier:
        found = tuple(_changes(folder, earlier))
        refusal = (
            f"{num_older} of {len(runs)} runs were started under another plan: "
            f"{'; '.join(found)}. A verdict holds for a plan that was fixed before. If this one "
            f"was changed, {folder.path / PLANS} keeps the earlier, and study.json can be "
            "restored; if the runs were taken over, run them again."
        )
        return PlanCheck(stated=stated, changes=found, refusal=refusal)
    limit = None
    if num_older:
        limit = (
            f"the question was stated after the runs ({folder.asked or 'no date'}): "
            f"{num_older} of {len(runs)} runs are older. So the verdict explores these runs; it "
            "is no test, and its error rates are not what they would be."
        )
    return PlanCheck(stated=stated, limit=limit)


def _changes(folder: StudyFolder, earlier: Sequence[str]) -> list[str]:
    found: list[str] = []
    for sha256 in earlier:
        plan = folder.plan_called(sha256)
        if plan is None:
            found.append(f"the plan {sha256[:12]} was not kept, so what changed cannot be said")
        else:
            found += changes(plan, folder.plan) or ["a recipe's constants or the text"]
    return list(dict.fromkeys(found))


def arm_refusal(arm: str, runs: Sequence[RunSummary], baseline: Sequence[RunSummary]) -> str | None:
    """Why an arm cannot be compared with the baseline, by where its runs were made; None if so."""
    backends = {e.backend for run in runs for e in run.environments}
    if len(backends) > 1:
        return (
            f"{arm} was run with native and with emulated products, which are two treatments in "
            "one arm. Run the study with --backend native or --backend emulated."
        )
    for what in _CONFOUNDS:
        mine, theirs = _values(runs, what), _values(baseline, what)
        if mine and theirs and not mine & theirs:
            return (
                f"all runs of {arm} differ from all of the baseline's in {what} "
                f"({_listed(mine)}; {_listed(theirs)}), so that what it does cannot be told from "
                "what the recipe does. Run both arms on one machine."
            )
    return None


def mixed(question: Question, runs: Sequence[RunSummary]) -> Iterator[str]:
    """Machines, versions and commits that differ within an arm or within a pair, in words."""
    for what in _SEEN:
        arms = {
            arm: Counter(v for r in runs if r.recipe == arm for v in _values([r], what))
            for arm in (question.baseline, *question.arms)
        }
        several = {arm: counts for arm, counts in arms.items() if len(counts) > 1}
        split = [str(seed) for seed in _split_pairs(question, runs, what)]
        if several:
            counts = sum(several.values(), Counter())
            yield (
                f"runs within one arm differ in {what} ({', '.join(several)}: {_counted(counts)}), "
                "and what that changes is in the spread."
            )
        if split:
            seeds = f"pair{'s' * (len(split) > 1)} of seed {', '.join(split)}"
            yield (
                f"in the {seeds} the two runs differ in {what}, which cannot be told from the "
                "recipe there."
            )


def _split_pairs(question: Question, runs: Sequence[RunSummary], what: str) -> list[int]:
    split = set()
    for run in runs:
        if run.recipe in question.arms and not run.ulp_rerun:
            other = [
                r
                for r in runs
                if r.recipe == question.baseline and r.seed == run.seed and not r.ulp_rerun
            ]
            if other and _values([run], what) != _values(other, what):
                split.add(run.seed)
    return sorted(split)


def _values(runs: Sequence[RunSummary], what: str) -> set[str]:
    return {_SEEN[what](e) for run in runs for e in run.environments}


def _listed(values: set[str]) -> str:
    return ", ".join(sorted(values))


def _counted(counts: Counter[str]) -> str:
    return "; ".join(f"{value} ({count})" for value, count in counts.most_common())
