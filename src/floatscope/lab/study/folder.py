"""A study's folder: `study.json` with the plan, and a folder a run under `runs/`.

A study that asks something also keeps every plan that runs were started under in `plans/`, named by
its hash, so that a plan changed afterwards is noticed and what was changed can be said.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from floatscope.errors import StudyError
from floatscope.files import disk_errors, write_text_atomically
from floatscope.lab.run import records
from floatscope.lab.run.json_files import read_json
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.run.records import FinishedRun
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.question import Question

SCHEMA_VERSION = 1
STUDY = "study.json"
PLANS = "plans"


@dataclass(frozen=True, kw_only=True)
class StudyFile:
    """A study's plan, as fixed before its first run: `study.json`."""

    schema: int = SCHEMA_VERSION
    plan: StudyPlan
    data_sha256: str
    """Of the token ids that all runs train and validate on."""
    asked: str | None = None
    """When the plan's question was stated: UTC, ISO 8601. None if there is none."""


@dataclass(frozen=True)
class StudyFolder:
    """A study on disk."""

    path: Path
    plan: StudyPlan
    data_sha256: str
    asked: str | None = None

    @property
    def asked_sha256(self) -> str | None:
        """Of the plan as it is now; None where nothing is asked."""
        return self.plan.asked_sha256(self.data_sha256)

    def run_folder(self, run: RunPlan) -> Path:
        """Where `run` lives: its label for people, and the beginning of its id."""
        return self.path / "runs" / f"{run.label}-{run.run_id(self.data_sha256)[:8]}"

    def is_finished(self, run: RunPlan) -> bool:
        return records.is_finished(self.run_folder(run))

    def num_finished(self) -> int:
        """Runs of the plan that have ended, repeats included."""
        return sum(self.is_finished(run) for run in self.plan.runs())

    def finished(self, *, repeats: bool = False) -> Iterator[tuple[RunPlan, FinishedRun]]:
        """The runs of the plan that have ended, in the plan's order.

        Args:
            repeats: whether repetitions with nothing changed are among them, which enter no mean.

        Raises:
            StudyError: a record is damaged, or is not the run its folder says.
        """
        for run in self.plan.runs():
            if self.is_finished(run) and (repeats or not run.repeat):
                folder = self.run_folder(run)
                found = records.load(folder)
                if found.manifest.run_id != run.run_id(self.data_sha256):
                    raise StudyError(
                        f"{folder} holds another run than its name says. Move it away and run the "
                        "study again."
                    )
                yield run, found

    def reuse(self, other: Path) -> int:
        """Copy the finished runs of this plan that the study in `other` has; returns their number.

        Raises:
            StudyError: `other` has no runs.
        """
        if not (other / "runs").is_dir():
            raise StudyError(f"--reuse {other}: there are no runs in it.")
        copied = 0
        for run in self.plan.runs():
            name = self.run_folder(run).name
            found = other / "runs" / name
            if self.is_finished(run) or not records.is_finished(found):
                continue
            if records.load(found).manifest.run_id != run.run_id(self.data_sha256):
                continue
            temporary = self.path / "runs" / f".{name}.tmp"
            with disk_errors(temporary):
                shutil.rmtree(temporary, ignore_errors=True)
                shutil.copytree(found, temporary, ignore=shutil.ignore_patterns(".lock"))
                shutil.rmtree(self.run_folder(run), ignore_errors=True)
                temporary.rename(self.run_folder(run))
            copied += 1
        for kept in sorted((other / PLANS).glob("*.json")):
            write_text_atomically(self.path / PLANS / kept.name, kept.read_text(encoding="utf-8"))
        return copied

    def has_other_plans(self) -> bool:
        """Whether runs that are here were started under a plan that is not this study's."""
        kept = {path.stem for path in (self.path / PLANS).glob("*.json")}
        return bool(kept - {self.asked_sha256})

    def plan_called(self, sha256: str) -> StudyPlan | None:
        """The plan of that hash that runs were started under; None if it was not kept as it was."""
        path = self.path / PLANS / f"{sha256}.json"
        if not path.exists():
            return None
        file = read_json(path, StudyFile, SCHEMA_VERSION, "Move it away.")
        return file.plan if file.plan.asked_sha256(file.data_sha256) == sha256 else None

    def ask(self, question: Question) -> StudyFolder:
        """State a question that the study was not planned with.

        Raises:
            StudyError: it has one, or the question does not fit the study.
        """
        if self.plan.question is not None:
            raise StudyError(
                f"{self.path} was planned with a question, and another one cannot take its place: "
                f"{self.plan.question.text!r}. For another question plan another study."
            )
        try:
            plan = replace(self.plan, question=question)
        except ValueError as error:
            raise StudyError(f"{error}.") from None
        return create(self.path, plan, self.data_sha256)


def find(path: Path, plan: StudyPlan, data_sha256: str) -> StudyFolder | None:
    """The study in `path` if it is of this plan; None if `path` is absent or empty.

    Raises:
        StudyError: the folder holds another plan, or something that is no study.
    """
    if path.exists() and not path.is_dir():
        raise StudyError(f"{path} is a file, not a folder. Choose another with --out.")
    if (path / STUDY).exists():
        existing = open_study(path)
        differences = _differences(existing, plan, data_sha256)
        if differences:
            raise StudyError(
                f"{path} holds another study: {'; '.join(differences)}. Nothing was changed. "
                "Choose another folder with --out, and --reuse this one to take over the runs they "
                "share."
            )
        return existing
    if path.exists() and any(not p.name.startswith(".") for p in path.iterdir()):
        has_runs = (path / "runs").is_dir()
        take_over = f" --reuse {path} takes over its finished runs." if has_runs else ""
        raise StudyError(
            f"{path} is not empty and holds no {STUDY}. Choose another folder with --out."
            f"{take_over}"
        )
    return None


def create(path: Path, plan: StudyPlan, data_sha256: str) -> StudyFolder:
    """Make `path` the folder of `plan`."""
    # The text's name, not its path: records travel, and the data's hash says which text it was.
    named = replace(plan.resolved(), text=Path(plan.text).name)
    asked = None if named.question is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    file = StudyFile(plan=named, data_sha256=data_sha256, asked=asked)
    text = json.dumps(asdict(file), indent=2) + "\n"
    if (sha256 := named.asked_sha256(data_sha256)) is not None:
        write_text_atomically(path / PLANS / f"{sha256}.json", text)
    write_text_atomically(path / STUDY, text)
    return StudyFolder(path, plan, data_sha256, asked)


def open_study(path: Path) -> StudyFolder:
    """The study in `path`.

    Raises:
        StudyError: there is none, it is damaged, or it was written by a newer floatscope.
    """
    way_out = "Restore it, or start anew in another folder."
    try:
        file = read_json(path / STUDY, StudyFile, SCHEMA_VERSION, way_out)
    except (FileNotFoundError, NotADirectoryError):
        raise StudyError(f"{path} holds no study: there is no {STUDY} in it.") from None
    return StudyFolder(path, file.plan, file.data_sha256, file.asked)


def _differences(existing: StudyFolder, plan: StudyPlan, data_sha256: str) -> list[str]:
    same_runs = existing.plan.sha256(existing.data_sha256) == plan.sha256(data_sha256)
    if same_runs and existing.asked_sha256 == plan.asked_sha256(data_sha256):
        return []
    differences = changes(existing.plan, plan)
    if existing.data_sha256 != data_sha256:
        differences.append("the text is another one")
    return differences or ["a recipe's constants have changed"]


def changes(before: StudyPlan, after: StudyPlan) -> list[str]:
    """What differs between two plans but for names, "margin was 0.01, now 0.02"."""
    common = {r.name for r in before.own_recipes} & {r.name for r in after.own_recipes}
    old, new = (_said(plan, common) for plan in (before, after))
    return [
        f"{key} was {old.get(key)}, now {new.get(key)}"
        for key in sorted(old | new)
        if key not in ("name", "text") and old.get(key) != new.get(key)
    ]


def _said(plan: StudyPlan, recipes: Collection[str]) -> dict[str, Any]:
    """What determines a plan, flat; of its own recipes those that are named, by name."""
    own = {r.name: r.to_dict() for r in plan.own_recipes if r.name in recipes}
    return _flat({**plan.resolved().to_dict(), "own_recipes": own})


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
