"""The records of a study as one JSON file, for platforms that draw a page of their own.

What has not been measured is null. `floatscope memory measure --into FILE` fills the field `memory`
later. Numbers that JSON does not have are the strings "NaN", "Infinity" and "-Infinity".
`python -m floatscope.report.export FOLDER` writes the JSON Schema.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from floatscope.errors import StudyError
from floatscope.files import write_text_atomically
from floatscope.lab.compare.records import Comparison
from floatscope.lab.decision.records import Decision
from floatscope.lab.probe.records import ProbeFile
from floatscope.lab.run.environment import Environment
from floatscope.lab.run.json_files import json_values
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.summary import Summary
from floatscope.report.evidence import Evidence, Run

SCHEMA_VERSION = 1
SCHEMA_NAME = f"export-{SCHEMA_VERSION}.schema.json"
STEP_COLUMNS = ("step", "loss", "lr", "grad_norm", "loss_scale", "skipped", "num_nonfinite",
                "zero_fraction", "zero_fraction_absent_rows", "zero_fraction_elsewhere",
                "seconds")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The curve of a run, columns of equal length; a number a training step."""

    step: list[int]
    """From 0."""
    loss: list[float]
    """Nats a token, of the step's batch."""
    lr: list[float]
    grad_norm: list[float]
    loss_scale: list[float]
    """1 without loss scaling."""
    skipped: list[bool]
    num_nonfinite: list[int]
    zero_fraction: list[float]
    """Share of gradient elements that are exactly zero."""
    zero_fraction_absent_rows: list[float]
    """The same in embedding rows of tokens absent from the batch."""
    zero_fraction_elsewhere: list[float]
    seconds: list[float]


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """Validation loss, in nats a token, after so many steps."""

    step: list[int]
    loss: list[float]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a step."""

    step: int
    event: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """A finished run."""

    label: str
    run_id: str
    recipe: str
    seed: int
    ulp_rerun: int
    """0, or the number of a repetition with initial weights moved by at most one ulp."""
    exit_reason: str
    num_parameters: int
    tokens_per_step: int
    peak_rss_bytes: int
    environments: list[Environment]
    """One a session; more than one if the run was interrupted."""
    steps: Steps
    evaluations: Evaluations
    events: list[Event]


@dataclass(frozen=True, kw_only=True)
class Export:
    """Everything that there is."""

    schema: int = SCHEMA_VERSION
    study: str
    plan: StudyPlan
    data_sha256: str
    summary: Summary | None
    """What `floatscope study show --json` prints; null before the first run has finished."""
    runs: list[ExportedRun]
    probes: list[ProbeFile] | None
    memory: list[dict[str, Any]] | None
    """Records as `memory.json` has them, one a measurement."""
    comparisons: list[Comparison] | None
    lecture: list[dict[str, Any]] | None
    """Records as `lecture/demo-N.json` has them."""
    decision: Decision | None


def exported(evidence: Evidence) -> Export:
    """The evidence as one record."""
    return Export(
        study=evidence.study.plan.name,
        plan=evidence.study.plan,
        data_sha256=evidence.study.data_sha256,
        summary=evidence.summary if evidence.runs else None,
        runs=[_run(run) for run in evidence.runs],
        probes=[probe.file for probe in evidence.probes] or None,
        memory=[record.data for record in evidence.memories] or None,
        comparisons=list(evidence.comparisons) or None,
        lecture=[asdict(file) for file in evidence.lectures] or None,
        decision=evidence.decision,
    )


def _run(run: Run) -> ExportedRun:
    manifest, events = run.manifest, run.events
    rows = zip(events["step"], events["event"], events["detail"], strict=True)
    return ExportedRun(
        label=run.label,
        run_id=manifest.run_id,
        recipe=run.recipe,
        seed=run.plan.seed,
        ulp_rerun=run.plan.ulp_rerun,
        exit_reason=manifest.exit_reason,
        num_parameters=manifest.num_parameters,
        tokens_per_step=manifest.tokens_per_step,
        peak_rss_bytes=manifest.peak_rss_bytes,
        environments=[session.environment for session in manifest.sessions],
        steps=Steps(**{column: run.metrics[column] for column in STEP_COLUMNS}),
        evaluations=Evaluations(step=run.evaluations["step"], loss=run.evaluations["loss"]),
        events=[Event(step=step, event=event, detail=detail) for step, event, detail in rows],
    )


def write(evidence: Evidence, path: Path) -> Path:
    """Write the export to `path` and its schema beside it; returns the schema's path.

    Raises:
        DiskError: the folder cannot be written.
    """
    beside = path.with_name(f"{path.stem}.schema.json")
    write_text_atomically(beside, _text(schema()))
    write_text_atomically(path, _text(json_values(asdict(exported(evidence)))))
    return beside


def fill_memory(path: Path, record: dict[str, Any]) -> None:
    """Put a memory record into the field `memory` of an export, in place of what was there.

    Raises:
        StudyError: the file is missing, or no export.
        DiskError: it cannot be written.
    """
    write_text_atomically(path, _text({**read_export(path), "memory": [record]}))


def read_export(path: Path) -> dict[str, Any]:
    """The values of an export.

    Raises:
        StudyError: the file is missing, or no export.
    """
    values: dict[str, Any] = {}
    try:
        values = json.loads(path.read_bytes())
        is_export = values["schema"] == SCHEMA_VERSION and "memory" in values and "runs" in values
    except (OSError, ValueError, KeyError, TypeError):
        is_export = False
    if not is_export:
        raise StudyError(
            f"{path} is no file of `floatscope export`. Make one with: "
            f"floatscope export DIR -o {path}"
        )
    return values


def schema() -> dict[str, Any]:
    """JSON Schema of an export."""
    from pydantic import TypeAdapter

    return _with_names(TypeAdapter(Export).json_schema())


def _with_names(described: Any) -> Any:
    """A schema whose numbers may be the strings that stand for what JSON does not have."""
    if isinstance(described, list):
        return [_with_names(part) for part in described]
    if not isinstance(described, dict):
        return described
    if described.get("type") == "number":
        rest = {key: value for key, value in described.items() if key != "type"}
        return {**rest, "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
    return {key: _with_names(part) for key, part in described.items()}


def _text(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Write the schema to a folder."""
    write_text_atomically(Path(arguments[0]) / SCHEMA_NAME, json.dumps(schema(), indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
