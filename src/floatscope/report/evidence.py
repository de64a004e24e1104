"""Everything that a report is drawn from: the records in one study's folder.

The study itself must be readable. Records beside it (probe, memory, comparison, lecture, decision)
may be absent, which their sections say with the command that makes them; or damaged, which their
sections say in the words of whoever read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from floatscope.errors import FloatscopeError
from floatscope.lab.run.journal import read as read_journal
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.run.records import JOURNAL, Manifest
from floatscope.lab.study.folder import StudyFolder, open_study
from floatscope.lab.study.plan import BASELINE
from floatscope.lab.study.summary import Summary, summarize
from floatscope.report.probes import ProbeRecord, probe_folders, read_probe

_T = TypeVar("_T")


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
    probes: tuple[ProbeRecord, ...] = ()
    damaged: dict[str, str] = field(default_factory=dict)
    """Sections whose record cannot be read, and why."""

    @property
    def folder(self) -> Path:
        return self.study.path

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
    probes = [_readable("probe", damaged, read_probe, found) for found in probe_folders(folder)]
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
            for plan, run in study.finished()
        ),
        under_way=tuple(_under_way(study)),
        probes=tuple(probe for probe in probes if probe is not None),
        damaged=damaged,
    )


def _readable(
    section: str, damaged: dict[str, str], read: Callable[[Path], _T], path: Path
) -> _T | None:
    """What `read` finds in `path`; None, and the reason in `damaged`, where it cannot."""
    try:
        return read(path)
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
