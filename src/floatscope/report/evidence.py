"""Everything that a report is drawn from: the records in one study's folder.

The study itself must be readable. Records beside it (probe, memory, comparison, lecture, decision)
may be absent, which their sections say with the command that makes them; or damaged, which their
sections say in the words of whoever read them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from floatscope.errors import FloatscopeError
from floatscope.lab.compare.keep import COMPARE
from floatscope.lab.compare.keep import load as read_comparison
from floatscope.lab.compare.records import Comparison
from floatscope.lab.decision.keep import load as read_decision
from floatscope.lab.decision.records import RECORD, Decision
from floatscope.lab.lecture.keep import DemoFile, path_of
from floatscope.lab.lecture.keep import read as read_demonstration
from floatscope.lab.lecture.records import KINDS
from floatscope.lab.run.journal import read as read_journal
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.run.records import JOURNAL, FinishedRun, Manifest
from floatscope.lab.study.folder import StudyFolder, open_study
from floatscope.lab.study.plan import BASELINE
from floatscope.lab.study.summary import Summary, summarize
from floatscope.report.memory_record import MemoryRecord, by_weight, memory_folders, read_memory
from floatscope.report.probes import ProbeRecord, probe_folders, read_probe
from floatscope.spectrum.spectrum import Spectrum

_T = TypeVar("_T")
_P = TypeVar("_P")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run and its tables, columns by name."""

    plan: RunPlan
    manifest: Manifest
    metrics: dict[str, list[Any]]
    evaluations: dict[str, list[Any]]
    events: dict[str, list[Any]]

    @property
    def label(self) -> str:
        return self.plan.label

    @property
    def recipe(self) -> str:
        return self.plan.recipe.name

    @property
    def diverged(self) -> bool:
        return self.manifest.exit_reason != "finished"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A study's records, whatever of them there is."""

    study: StudyFolder
    summary: Summary
    runs: tuple[Run, ...]
    under_way: tuple[tuple[str, int], ...]
    """Labels of unfinished runs, and the steps that their journals hold."""
    gradients: dict[str, dict[int, dict[str, Spectrum]]] = field(default_factory=dict)
    """Of the first run of each recipe, by its label, step and parameter: of unscaled gradients."""
    probes: tuple[ProbeRecord, ...] = ()
    memories: tuple[MemoryRecord, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    lectures: tuple[DemoFile[Any], ...] = ()
    decision: Decision | None = None
    damaged: dict[str, str] = field(default_factory=dict)
    """Sections whose record cannot be read, and why."""

    @property
    def folder(self) -> Path:
        return self.study.path

    @property
    def place(self) -> str:
        """The folder as a shell reads it, for commands that are shown."""
        return shlex.quote(str(self.folder))

    @property
    def baselines(self) -> list[Run]:
        """Finished runs of the baseline, one-ulp reruns not among them."""
        return [
            run
            for run in self.runs
            if run.recipe == BASELINE and not run.plan.ulp_rerun and not run.diverged
        ]

    @property
    def recipes(self) -> list[str]:
        """Of the runs that there are, in the plan's order."""
        return [arm.recipe for arm in self.summary.arms]

    @property
    def main_probe(self) -> ProbeRecord | None:
        """The baseline's probe, else the first."""
        return next((p for p in self.probes if p.recipe == BASELINE), next(iter(self.probes), None))


def gather(folder: Path) -> Evidence:
    """Read the records in a study's folder.

    Raises:
        StudyError: there is no study, or the records of one of its runs are damaged.
    """
    study = open_study(folder)
    damaged: dict[str, str] = {}

    def readable(section: str, read: Callable[[_P], _T], places: Iterable[_P]) -> tuple[_T, ...]:
        found = [_readable(section, damaged, read, place) for place in places]
        return tuple(one for one in found if one is not None)

    has_decision = [folder] if (folder / RECORD).exists() else []
    demonstrations = [number for number in KINDS if path_of(folder, number).exists()]
    finished = [*study.finished()]
    return Evidence(
        study=study,
        summary=summarize(study),
        runs=tuple(
            Run(
                plan=plan,
                manifest=run.manifest,
                metrics=run.table("metrics"),
                evaluations=run.table("evaluations"),
                events=run.table("events"),
            )
            for plan, run in finished
        ),
        gradients={
            label: spectra
            for label, run in _first_of_each_recipe(finished)
            for spectra in readable("gradients", FinishedRun.gradients, [run])
            if spectra
        },
        under_way=tuple(_under_way(study)),
        probes=readable("probe", read_probe, probe_folders(folder)),
        memories=by_weight(
            readable("memory", read_memory, memory_folders(folder)), study.plan.model.attention
        ),
        comparisons=readable(
            "compare", read_comparison, sorted(folder.glob(f"compare/**/{COMPARE}"))
        ),
        lectures=readable("lecture", lambda n: read_demonstration(folder, n), demonstrations),
        decision=next(iter(readable("decision", read_decision, has_decision)), None),
        damaged=damaged,
    )


def _first_of_each_recipe(
    finished: Sequence[tuple[RunPlan, FinishedRun]],
) -> list[tuple[str, FinishedRun]]:
    """The runs of which the page draws gradients, with their labels; reading all takes long."""
    first: dict[str, tuple[str, FinishedRun]] = {}
    for plan, run in finished:
        if run.has_gradients and not plan.ulp_rerun:
            first.setdefault(plan.recipe.name, (plan.label, run))
    return [*first.values()]


def _readable(
    section: str, damaged: dict[str, str], read: Callable[[_P], _T], place: _P
) -> _T | None:
    """What `read` finds in a place; None, and the reason in `damaged`, where it cannot."""
    try:
        return read(place)
    except FloatscopeError as error:
        damaged[section] = str(error)
    except FileNotFoundError as error:
        damaged[section] = f"the record {error.filename} is missing."
    return None


def _under_way(study: StudyFolder) -> list[tuple[str, int]]:
    found = []
    for run in study.plan.runs():
        journal = study.run_folder(run) / JOURNAL
        if not study.is_finished(run) and journal.exists():
            steps = sum(record["table"] == "metrics" for record in read_journal(journal))
            found.append((run.label, steps))
    return found
