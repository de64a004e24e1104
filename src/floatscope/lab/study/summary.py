"""What a study found, computed from its records alone.

Differences are taken seed by seed against the baseline's runs of the same seed (their mean, where
a seed was repeated with one-ulp moves), then averaged, so that what a seed shares cancels. Whether
a difference can be told from zero is asked of two noise floors, each as three standard deviations
of a single run, the course document's rule: the *seed spread* (fp32 over seeds) and the *rerun
floor* (one seed repeated with every initial weight moved by at most one ulp). A diverged run enters
no mean.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, fields

from floatscope.errors import StudyError
from floatscope.lab.study.folder import StudyFolder
from floatscope.lab.study.judge import judge
from floatscope.lab.study.judgement import Judgement
from floatscope.lab.study.plan import BASELINE, StudyPlan
from floatscope.lab.study.runs import RunSummary, StoredUpdates, mean, run_summary

SIGMAS = 3.0


@dataclass(frozen=True, kw_only=True)
class Floor:
    """How far runs part that differ in nothing that matters."""

    name: str
    losses: tuple[float, ...]
    standard_deviation: float
    """Of a single run; NaN below two runs."""
    spread: float
    """Largest minus smallest."""

    def hides(self, difference: float) -> bool | None:
        """Whether `difference` is within three standard deviations; None if nobody can say.

        Nobody can say with fewer than two runs, or when all of them ended equal: a floor of zero
        was not measured but missed.
        """
        if not self.standard_deviation > 0 or math.isnan(difference):
            return None
        return abs(difference) <= SIGMAS * self.standard_deviation


@dataclass(frozen=True, kw_only=True)
class Arm:
    """All runs of one recipe; one-ulp reruns are not among them."""

    recipe: str
    backend: str
    num_runs: int
    num_diverged: int
    validation_loss: float
    differences: dict[int, float]
    """By seed, to the baseline of that seed."""
    difference: float
    """Mean of `differences`; NaN if there are none."""
    hidden_by_seed_spread: bool | None
    hidden_by_rerun_floor: bool | None
    skipped_steps: float
    zero_fraction: float
    zero_fraction_absent_rows: float
    zero_fraction_elsewhere: float
    peak_rss_bytes: int
    tokens_per_second: float
    stored: StoredUpdates | None = None
    """Means over its runs; None where everything is stored in fp32, or no record says."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A study's result so far."""

    name: str
    num_planned: int
    num_finished: int
    baseline: str
    arms: tuple[Arm, ...]
    seed_spread: Floor
    rerun_floor: Floor
    runs: tuple[RunSummary, ...]
    remarks: tuple[str, ...]
    """What a reader must know before believing the table."""
    judgement: Judgement
    """The verdicts, or why there are none."""


def summarize(folder: StudyFolder) -> Summary:
    """Read the finished runs of a study.

    Raises:
        StudyError: a record is damaged, or it is a stress study.
    """
    if folder.plan.stress is not None:
        raise StudyError(
            f"{folder.path} is a stress study: it compares learning rates, and has no summary of "
            f"arms. Look at it with floatscope study show {folder.path}."
        )
    runs = tuple(run_summary(plan, run) for plan, run in folder.finished())
    baseline = [r for r in runs if r.recipe == BASELINE and not r.diverged]
    seed_spread = _floor("seed spread", [r for r in baseline if not r.ulp_rerun])
    repeated = {r.seed for r in baseline if r.ulp_rerun}
    rerun_floor = _floor("rerun floor", [r for r in baseline if r.seed in repeated])
    reference = {
        seed: statistics.fmean(r.validation_loss for r in baseline if r.seed == seed)
        for seed in {r.seed for r in baseline}
    }
    arms = tuple(
        _arm(name, mine, reference, seed_spread, rerun_floor)
        for name in folder.plan.recipes
        if (mine := [r for r in runs if r.recipe == name and not r.ulp_rerun])
    )
    return Summary(
        name=folder.plan.name,
        num_planned=len(folder.plan.runs()),
        num_finished=folder.num_finished(),
        baseline=BASELINE,
        arms=arms,
        seed_spread=seed_spread,
        rerun_floor=rerun_floor,
        runs=runs,
        remarks=(*_own(folder.plan), *_remarks(runs)),
        judgement=judge(folder, runs),
    )


def _own(plan: StudyPlan) -> list[str]:
    """Which recipes no catalogue explains."""
    own = plan.own_recipes
    return [f"{one.name} is this study's own recipe: {one.summary or one.source}" for one in own]


def _floor(name: str, runs: list[RunSummary]) -> Floor:
    losses = tuple(r.validation_loss for r in runs)
    return Floor(
        name=name,
        losses=losses,
        standard_deviation=statistics.stdev(losses) if len(losses) > 1 else math.nan,
        spread=max(losses) - min(losses) if len(losses) > 1 else math.nan,
    )


def _arm(
    name: str,
    runs: list[RunSummary],
    reference: dict[int, float],
    seed_spread: Floor,
    rerun_floor: Floor,
) -> Arm:
    whole = [r for r in runs if not r.diverged]
    differences = {
        r.seed: r.validation_loss - reference[r.seed] for r in whole if r.seed in reference
    }
    difference = mean(list(differences.values()))
    is_baseline = name == BASELINE
    return Arm(
        recipe=name,
        backend="/".join(dict.fromkeys(r.backend for r in runs)),
        num_runs=len(runs),
        num_diverged=len(runs) - len(whole),
        validation_loss=mean([r.validation_loss for r in whole]),
        differences=differences,
        difference=difference,
        hidden_by_seed_spread=None if is_baseline else seed_spread.hides(difference),
        hidden_by_rerun_floor=None if is_baseline else rerun_floor.hides(difference),
        skipped_steps=mean([r.skipped_steps for r in runs]),
        zero_fraction=mean([r.zero_fraction for r in runs]),
        zero_fraction_absent_rows=mean([r.zero_fraction_absent_rows for r in runs]),
        zero_fraction_elsewhere=mean([r.zero_fraction_elsewhere for r in runs]),
        peak_rss_bytes=max(r.peak_rss_bytes for r in runs),
        tokens_per_second=statistics.median(r.tokens_per_second for r in runs),
        stored=_stored([r.stored for r in runs if r.stored is not None]),
    )


def _stored(each: list[StoredUpdates]) -> StoredUpdates | None:
    if not each:
        return None
    return StoredUpdates(
        **{
            field.name: mean([getattr(one, field.name) for one in each])
            for field in fields(each[0])
        }
    )


def _remarks(runs: tuple[RunSummary, ...]) -> list[str]:
    """Environments that differ between runs, or within a resumed one."""
    remarks = []
    for key in ("processor", "python", "packages", "commit"):
        values = [{_short(getattr(e, key)) for e in run.environments} for run in runs]
        counts = Counter(value for of_run in values for value in of_run)
        if len(counts) > 1:
            each = "; ".join(f"{value} ({count})" for value, count in counts.most_common())
            remarks.append(f"the runs differ in {key}: {each}")
    recipes = list(dict.fromkeys(r.recipe for r in runs))
    for recipe in recipes:
        backends = {e.backend for r in runs if r.recipe == recipe for e in r.environments}
        if len(backends) > 1:
            remarks.append(f"{recipe} ran on both backends, native and emulated")
    seeds = {recipe: {r.seed for r in runs if r.recipe == recipe} for recipe in recipes}
    if len({frozenset(s) for s in seeds.values()}) > 1:
        remarks.append(
            "not all arms have the same seeds yet: losses are means of what each arm has, "
            "differences of the seeds it shares with the baseline"
        )
    resumed = [r.label for r in runs if len(r.environments) > 1]
    if resumed:
        remarks.append(f"resumed after an interruption: {', '.join(resumed)}")
    return remarks


def _short(value: object) -> str:
    """A commit in ten digits, versions as "torch 2.13.0, numpy 2.4.6"."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    text = str(value)
    is_commit = len(text.rstrip("+")) == 40
    return text[:10] + ("+" if text.endswith("+") else "") if is_commit else text
