"""A finished run in a few numbers, as summaries and verdicts see it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from floatscope.lab.run.environment import Environment
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.run.records import FinishedRun


@dataclass(frozen=True, kw_only=True)
class StoredUpdates:
    """What storage in fewer bits made of updates, over the first and last tenth of the steps."""

    lost_first: float
    """Share of the non-zero updates that left no trace in what is carried from step to step."""
    lost_last: float
    quality_first: float
    """Mean effective descent quality <r, d> / |d|²: r what became of the update d; NaN if none."""
    quality_last: float


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One finished run in a few numbers."""

    label: str
    recipe: str
    seed: int
    ulp_rerun: int
    exit_reason: str
    validation_loss: float
    """Nats a token after the last step; NaN if the run diverged."""
    bits_per_char: float
    skipped_steps: int
    zero_fraction: float
    """Mean over steps of the share of gradient elements that are exactly zero."""
    zero_fraction_absent_rows: float
    """The same inside embedding rows of tokens absent from the batch."""
    zero_fraction_elsewhere: float
    final_loss_scale: float
    peak_rss_bytes: int
    tokens_per_second: float
    """From the median step, under whatever load the machine had."""
    backend: str
    environments: tuple[Environment, ...]
    evaluations: tuple[tuple[int, float], ...] = ()
    """Steps done and validation loss, in order."""
    started: str = ""
    """When its first process began: UTC, ISO 8601."""
    study_sha256s: tuple[str | None, ...] = ()
    """Of the plans that its processes ran under; None where nothing was asked."""
    stored: StoredUpdates | None = None
    """None where everything is stored in fp32, or the record does not say."""

    @property
    def diverged(self) -> bool:
        return self.exit_reason != "finished"

    def endpoint(self, last_evaluations: int = 1) -> float:
        """Validation loss, averaged over the last evaluations; NaN if the run diverged."""
        if self.diverged:
            return math.nan
        return statistics.fmean(loss for _, loss in self.evaluations[-last_evaluations:])


def run_summary(plan: RunPlan, run: FinishedRun) -> RunSummary:
    """The numbers of a run.

    Raises:
        StudyError: a table is damaged.
    """
    manifest = run.manifest
    metrics, evaluations = run.table("metrics"), run.table("evaluations")
    diverged = manifest.exit_reason != "finished"
    loss = math.nan if diverged else evaluations["loss"][-1]
    environments = [session.environment for session in manifest.sessions]
    seconds = statistics.median(metrics["seconds"]) if metrics["seconds"] else math.nan
    return RunSummary(
        label=plan.label,
        recipe=plan.recipe.name,
        seed=plan.seed,
        ulp_rerun=plan.ulp_rerun,
        exit_reason=manifest.exit_reason,
        validation_loss=loss,
        bits_per_char=loss / math.log(2) / manifest.validation_chars_per_token,
        skipped_steps=sum(metrics["skipped"]),
        zero_fraction=mean(metrics["zero_fraction"]),
        zero_fraction_absent_rows=mean(metrics["zero_fraction_absent_rows"]),
        zero_fraction_elsewhere=mean(metrics["zero_fraction_elsewhere"]),
        final_loss_scale=metrics["loss_scale"][-1] if metrics["loss_scale"] else math.nan,
        peak_rss_bytes=manifest.peak_rss_bytes,
        tokens_per_second=manifest.tokens_per_step / seconds,
        backend="/".join(dict.fromkeys(e.backend for e in environments)),
        environments=tuple(environments),
        evaluations=tuple(zip(evaluations["step"], evaluations["loss"], strict=True)),
        started=manifest.sessions[0].started if manifest.sessions else "",
        study_sha256s=tuple(session.study_sha256 for session in manifest.sessions),
        stored=_stored(run.table_if_any("storage")),
    )


def _stored(table: dict[str, list[Any]] | None) -> StoredUpdates | None:
    if not table or not table["step"]:
        return None
    tenth = math.ceil(len(table["step"]) / 10)
    first, last = slice(tenth), slice(-tenth, None)

    def lost(part: slice) -> float:
        updates = sum(table["updates"][part])
        return sum(table["lost"][part]) / updates if updates else math.nan

    def quality(part: slice) -> float:
        return mean([q for q in table["quality"][part] if not math.isnan(q)])

    return StoredUpdates(
        lost_first=lost(first),
        lost_last=lost(last),
        quality_first=quality(first),
        quality_last=quality(last),
    )


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return statistics.fmean(values) if values else math.nan
