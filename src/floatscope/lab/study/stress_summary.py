"""What a stress study found: at which learning rate each recipe fails first, and what announced it.

One seed a cell says where a failure was seen, not how likely it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from floatscope.errors import StudyError
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.run.records import FinishedRun
from floatscope.lab.study.folder import StudyFolder
from floatscope.lab.study.plan import BASELINE
from floatscope.lab.study.stress import Remedy, Stress


@dataclass(frozen=True, kw_only=True)
class StressRun:
    """One run, and the extremes of what its steps recorded; steps without a number are left out."""

    label: str
    recipe: str
    remedy: Remedy
    peak_lr: float
    seed: int
    exit_reason: str
    steps_done: int
    validation_loss: float | None
    """In nats a token; None if the run diverged."""
    fails: bool
    max_attention_logit: float | None
    max_log_normalizer: float | None
    min_gradient_rms_by_eps: float | None
    """Smallest root mean square of a parameter's gradient over Adam's epsilon."""
    max_share_below_eps: float | None
    """Largest share of gradient elements below epsilon."""
    skipped_steps: int
    min_loss_scale: float


@dataclass(frozen=True, kw_only=True)
class FirstFailure:
    """The lowest learning rate at which a recipe fails under a remedy."""

    recipe: str
    remedy: Remedy
    peak_lr: float | None
    """None: none of the rates that were tried."""
    why: str
    """Exit reason of that run, or "loss"; empty if none failed."""
    highest_without: float | None
    """The highest rate below it, without a failure; None if the lowest one failed."""


@dataclass(frozen=True, kw_only=True)
class StressSummary:
    """A stress study's result so far."""

    name: str
    num_planned: int
    num_finished: int
    best_loss: float | None
    """Of the baseline's runs; None while there is none."""
    fails_above: float | None
    """Validation loss from which on a run that did not diverge counts as failed."""
    num_seeds: int
    runs: tuple[StressRun, ...]
    first_failures: tuple[FirstFailure, ...]
    """By remedy and recipe, of those whose runs have all ended."""


def summarize_stress(folder: StudyFolder) -> StressSummary:
    """Read the finished runs of a stress study.

    Raises:
        StudyError: a record is damaged, or it is no stress study.
    """
    stress = folder.plan.stress
    if stress is None:
        raise StudyError(f"{folder.path} is no stress study.")
    finished = list(folder.finished())
    losses = [_loss(run) for plan, run in finished if plan.recipe.name == BASELINE]
    best = min((loss for loss in losses if loss is not None), default=None)
    above = None if best is None else best + stress.fails_by
    runs = tuple(_stress_run(plan, run, above) for plan, run in finished)
    return StressSummary(
        name=folder.plan.name,
        num_planned=len(folder.plan.runs()),
        num_finished=len(runs),
        best_loss=best,
        fails_above=above,
        num_seeds=len(folder.plan.seeds),
        runs=runs,
        first_failures=tuple(_first_failures(folder, stress, runs)),
    )


def _loss(run: FinishedRun) -> float | None:
    if run.manifest.exit_reason != "finished":
        return None
    loss = run.table("evaluations")["loss"][-1]
    return loss if math.isfinite(loss) else None


def _stress_run(plan: RunPlan, run: FinishedRun, above: float | None) -> StressRun:
    loss, metrics, signs = _loss(run), run.table("metrics"), run.table("stability")
    return StressRun(
        label=plan.label,
        recipe=plan.recipe.name,
        remedy=_remedy(plan),
        peak_lr=plan.train.peak_lr,
        seed=plan.seed,
        exit_reason=run.manifest.exit_reason,
        steps_done=run.manifest.steps_done,
        validation_loss=loss,
        fails=loss is None or (above is not None and loss >= above),
        max_attention_logit=max(_finite(signs["max_attention_logit"]), default=None),
        max_log_normalizer=max(_finite(signs["max_log_normalizer"]), default=None),
        min_gradient_rms_by_eps=min(_finite(signs["min_gradient_rms_by_eps"]), default=None),
        max_share_below_eps=max(_finite(signs["share_below_eps"]), default=None),
        skipped_steps=sum(metrics["skipped"]),
        min_loss_scale=min(metrics["loss_scale"], default=math.nan),
    )


def _remedy(plan: RunPlan) -> Remedy:
    if plan.model.qk_norm:
        return "both" if plan.train.z_loss else "qk-norm"
    return "z-loss" if plan.train.z_loss else "none"


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _first_failures(
    folder: StudyFolder, stress: Stress, runs: tuple[StressRun, ...]
) -> Iterable[FirstFailure]:
    expected = len(stress.peak_lrs) * len(folder.plan.seeds)
    for remedy in stress.remedies:
        for recipe in folder.plan.recipes:
            mine = [r for r in runs if (r.remedy, r.recipe) == (remedy, recipe)]
            if len(mine) < expected:
                continue
            failed = [r for r in mine if r.fails]
            first = min(failed, key=lambda r: r.peak_lr, default=None)
            rate = math.inf if first is None else first.peak_lr
            why = "" if first is None else first.exit_reason
            yield FirstFailure(
                recipe=recipe,
                remedy=remedy,
                peak_lr=None if first is None else first.peak_lr,
                why="loss" if why == "finished" else why,
                highest_without=max((r.peak_lr for r in mine if r.peak_lr < rate), default=None),
            )
