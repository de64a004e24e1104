"""Finished studies made of given losses, without training: in memory, or as records on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from floatscope.lab.run import records
from floatscope.lab.run.environment import Environment
from floatscope.lab.run.journal import Record
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.run.records import FinishedRun, Manifest, Session
from floatscope.lab.study.folder import StudyFolder, create
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.question import Margin, Question
from tests import tiny

DATA = "d" * 64
HERE = Environment(
    backend="native", processor="here", cores=2, system="Linux x86_64", python="3.11.7",
    packages={"torch": "2.13.0"}, commit="a" * 40,
)  # fmt: skip
QUESTION = Question(text="Is it as good?", margin=Margin(absolute=0.01))
PLAN = StudyPlan(
    name="made",
    recipes=("fp32", "bf16-mixed"),
    seeds=(1, 2, 3, 4, 5),
    ulp_reruns=0,
    model=tiny.MODEL,
    train=replace(tiny.TRAIN, steps=100, eval_every=10),
    question=QUESTION,
)
BASE = {1: 3.001, 2: 3.004, 3: 2.998, 4: 3.003, 5: 2.996}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one run ended."""

    loss: float = 3.0
    exit_reason: str = "finished"
    environment: Environment = HERE
    seconds: float = 1.0
    slope: float = 1e-4
    """By how much the loss fell a step, at the evaluations."""
    zero_fraction: float = 0.0
    parts_at: int | None = None
    """A step whose recorded loss differs from that of other runs."""


Ends = Callable[[RunPlan], Ended | float]


@dataclass(frozen=True)
class ImaginedRun(FinishedRun):
    """A finished run whose tables are in memory."""

    rows: tuple[Record, ...] = ()

    def table(self, name: str) -> dict[str, list[Any]]:
        mine = [row for row in self.rows if row["table"] == name]
        columns = {**records.COLUMNS, **records.OPTIONAL}[name]
        return {column: [row[column] for row in mine] for column in columns}


@dataclass(frozen=True)
class ImaginedStudy(StudyFolder):
    """A study whose runs have ended as `ends` says; those for which it says None have not."""

    ends: Callable[[RunPlan], Ended | float | None] = lambda run: None

    def is_finished(self, run: RunPlan) -> bool:
        return self.ends(run) is not None

    def finished(self, *, repeats: bool = False) -> Iterator[tuple[RunPlan, FinishedRun]]:
        for run in self.plan.runs():
            end = self.ends(run)
            if end is not None and (repeats or not run.repeat):
                end = end if isinstance(end, Ended) else Ended(loss=end)
                manifest = _manifest(self, run, end, self.asked_sha256)
                yield run, ImaginedRun(self.path, manifest, tuple(_journal(run, end)))


def imagined(plan: StudyPlan, ends: Callable[[RunPlan], Ended | float | None]) -> ImaginedStudy:
    """The study of `plan`, with runs that ended as `ends` says."""
    return ImaginedStudy(Path("imagined"), plan, DATA, "2026-12-01T00:00:00Z", ends)


def made(path: Path, plan: StudyPlan, ends: Ends, *, asked: str | None = "now") -> StudyFolder:
    """The study in `path`, each run ended as `ends` says.

    Args:
        path: its folder.
        plan: its plan.
        ends: how a run ended, or its loss alone.
        asked: hash of the plan that the runs were started under; "now" for this plan's.
    """
    folder = create(path, plan, DATA)
    for run in plan.runs():
        end = ends(run)
        finish(folder, run, end if isinstance(end, Ended) else Ended(loss=end), asked)
    return folder


def finish(folder: StudyFolder, run: RunPlan, end: Ended, asked: str | None = "now") -> None:
    """Leave the records of one run."""
    sha256 = folder.asked_sha256 if asked == "now" else asked
    where = folder.run_folder(run)
    where.mkdir(parents=True, exist_ok=True)
    records.finish(where, _journal(run, end), _manifest(folder, run, end, sha256))


def _manifest(folder: StudyFolder, run: RunPlan, end: Ended, sha256: str | None) -> Manifest:
    session = Session(
        from_step=0,
        started="2026-12-01T00:00:00Z",
        environment=end.environment,
        study_sha256=sha256,
    )
    return Manifest(
        run_id=run.run_id(folder.data_sha256),
        label=run.label,
        plan=run.to_dict(),
        data_sha256=folder.data_sha256,
        num_parameters=1000,
        tokens_per_step=64,
        validation_chars_per_token=1.5,
        exit_reason=end.exit_reason,
        steps_done=run.train.steps,
        peak_rss_bytes=1 << 28,
        ended="2026-12-01T00:10:00Z",
        sessions=(session,),
    )


def _journal(run: RunPlan, end: Ended) -> list[Record]:
    metrics = [
        {
            "table": "metrics", "step": step, "lr": 1e-3, "grad_norm": 1.0,
            "loss": end.loss + (1e-9 if step == end.parts_at else 0.0),
            "loss_scale": 1.0, "skipped": False, "num_nonfinite": 0,
            "zero_fraction": end.zero_fraction, "zero_fraction_absent_rows": end.zero_fraction,
            "zero_fraction_elsewhere": end.zero_fraction, "num_absent_rows": 3,
            "seconds": end.seconds, "load": 0.5,
        }
        for step in range(3)
    ]  # fmt: skip
    steps = range(0, run.train.steps + 1, run.train.eval_every)
    evaluations = [
        records.evaluation(s, end.loss + end.slope * (run.train.steps - s), seconds=0.1)
        for s in steps
    ]
    return [*metrics, *evaluations, *(_signs(end) if run.watch else ())]


def _signs(end: Ended) -> list[Record]:
    return [
        {
            "table": "stability", "step": step, "max_attention_logit": logit,
            "max_log_normalizer": 5.0, "mean_log_normalizer": 4.0, "min_gradient_rms": 1e-6,
            "min_gradient_rms_of": "embedding.weight", "min_gradient_rms_by_eps": 100.0,
            "share_below_eps": 0.001,
        }
        for step, logit in enumerate((1.0, end.loss * 10, float("nan")))
    ]  # fmt: skip


def edit(folder: StudyFolder, change: Callable[[dict], None]) -> None:  # type: ignore[type-arg]
    """Edit study.json by hand."""
    path = folder.path / "study.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
