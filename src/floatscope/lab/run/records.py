"""The records of a run: what a line of the journal holds, and the files that remain when it ends.

`metrics.parquet` has a row a step, `evaluations.parquet` a row an evaluation, `events.parquet` a
row an event, `gradients.parquet` the spectrum of each parameter's gradient at a few steps, and
`manifest.json`, written last, says that the run has ended and how. A watched run also has
`stability.parquet`, a row a step; one that stores in fewer bits than fp32 has `storage.parquet`, a
row a step that was applied.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatscope.errors import StudyError
from floatscope.files import write_text_atomically
from floatscope.lab.run.environment import Environment
from floatscope.lab.run.journal import Record
from floatscope.lab.run.json_files import read_json
from floatscope.tables import TableError, read_parquet, write_parquet

if TYPE_CHECKING:
    from floatscope.lab.run.observe import ZeroGradients
    from floatscope.lab.run.stability import Signs
    from floatscope.recipes.movement import StoredUpdate
    from floatscope.recipes.train_step import StepResult
    from floatscope.spectrum.spectrum import Spectrum

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"

# Column names and DuckDB types of the three tables, in order.
COLUMNS: dict[str, dict[str, str]] = {
    "metrics": {
        "step": "INTEGER",
        "loss": "DOUBLE",
        "lr": "DOUBLE",
        "grad_norm": "DOUBLE",
        "loss_scale": "DOUBLE",
        "skipped": "BOOLEAN",
        "num_nonfinite": "BIGINT",
        "zero_fraction": "DOUBLE",
        "zero_fraction_absent_rows": "DOUBLE",
        "zero_fraction_elsewhere": "DOUBLE",
        "num_absent_rows": "INTEGER",
        "seconds": "DOUBLE",
        "load": "DOUBLE",
    },
    "evaluations": {"step": "INTEGER", "loss": "DOUBLE", "seconds": "DOUBLE"},
    "events": {"step": "INTEGER", "event": "VARCHAR", "detail": "VARCHAR"},
}
# Tables of runs that are watched, or that store in fewer bits; a file is written if it has rows.
OPTIONAL: dict[str, dict[str, str]] = {
    "stability": {
        "step": "INTEGER",
        "max_attention_logit": "DOUBLE",
        "max_log_normalizer": "DOUBLE",
        "mean_log_normalizer": "DOUBLE",
        "min_gradient_rms": "DOUBLE",
        "min_gradient_rms_of": "VARCHAR",
        "min_gradient_rms_by_eps": "DOUBLE",
        "share_below_eps": "DOUBLE",
    },
    "storage": {
        "step": "INTEGER",
        "updates": "BIGINT",
        "lost": "BIGINT",
        "quality": "DOUBLE",
        "unmoved": "BIGINT",
        "weights_quality": "DOUBLE",
    },
}
# The table of spectra is kept by `floatscope.spectrum.storage`, after these columns.
GRADIENTS = "gradients"
LABELS = {"step": "INTEGER", "parameter": "VARCHAR"}
WALL_CLOCK = ("seconds", "load")  # all else is the same in every repetition on one machine


def step(
    number: int, lr: float, result: StepResult, zeros: ZeroGradients, *, seconds: float, load: float
) -> Record:
    """The record of a training step."""
    return {
        "table": "metrics",
        "step": number,
        "loss": result.loss,
        "lr": lr,
        "grad_norm": result.grad_norm,
        "loss_scale": result.loss_scale,
        "skipped": result.skipped,
        "num_nonfinite": result.num_nonfinite,
        "zero_fraction": zeros.total,
        "zero_fraction_absent_rows": zeros.absent_rows,
        "zero_fraction_elsewhere": zeros.elsewhere,
        "num_absent_rows": zeros.num_absent_rows,
        "seconds": seconds,
        "load": load,
    }


def stability(number: int, signs: Signs) -> Record:
    """The record of what step `number` showed."""
    return {"table": "stability", "step": number, **asdict(signs)}


def storage(number: int, update: StoredUpdate) -> Record:
    """The record of what storing made of the update in step `number`; NaN for no quality."""
    fields = {"updates" if k == "of" else k: v for k, v in asdict(update).items()}
    numbers = {k: math.nan if v is None else v for k, v in fields.items()}
    return {"table": "storage", "step": number, **numbers}


def gradient(number: int, parameter: str, spectrum: Spectrum) -> Record:
    """The record of one parameter's unscaled gradient in step `number`."""
    from floatscope.spectrum.storage import to_dict

    return {"table": GRADIENTS, "step": number, "parameter": parameter, **to_dict(spectrum)}


def evaluation(number: int, loss: float, *, seconds: float) -> Record:
    """The record of an evaluation after `number` steps."""
    return {"table": "evaluations", "step": number, "loss": loss, "seconds": seconds}


def event(number: int, name: str, detail: str) -> Record:
    """The record of something that happened in step `number`."""
    return {"table": "events", "step": number, "event": name, "detail": detail}


@dataclass(frozen=True, kw_only=True)
class Session:
    """One process that worked on a run."""

    from_step: int
    """The step it began with: 0, or where a checkpoint stood."""
    started: str
    """UTC, ISO 8601."""
    environment: Environment
    study_sha256: str | None = None
    """Of the study's plan, its question included, as it was when this process began; None where
    nothing was asked."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a finished run was, how it ended, and where it computed: `manifest.json`."""

    schema: int = SCHEMA_VERSION
    run_id: str
    """Hash of plan, data, seed and threads; of no version."""
    label: str
    plan: dict[str, Any]
    data_sha256: str
    """Of the token ids trained and validated on."""
    num_parameters: int
    tokens_per_step: int
    validation_chars_per_token: float
    exit_reason: str
    """"finished", "diverged" (a weight became infinite or NaN) or "loss scale collapsed"."""
    steps_done: int
    peak_rss_bytes: int
    """Of the process that ended the run, the interpreter and libraries included."""
    ended: str
    """UTC, ISO 8601."""
    sessions: tuple[Session, ...]
    """More than one if the run was interrupted and resumed."""


def is_finished(folder: Path) -> bool:
    """Whether the run in `folder` has ended and its records are complete."""
    return (folder / MANIFEST).exists()


def finish(folder: Path, journal: Iterable[Record], manifest: Manifest) -> None:
    """Turn a journal into Parquet files and write the manifest last."""
    every = {**COLUMNS, **OPTIONAL}
    rows: dict[str, list[Record]] = {table: [] for table in (*every, GRADIENTS)}
    for record in journal:
        rows[record["table"]].append(record)
    for table, columns in every.items():
        if table in COLUMNS or rows[table]:
            write_parquet(folder / f"{table}.parquet", columns, rows[table])
    _write_gradients(folder, rows[GRADIENTS])
    text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False)
    write_text_atomically(folder / MANIFEST, text + "\n")


def _write_gradients(folder: Path, rows: Sequence[Record]) -> None:
    from floatscope.spectrum.storage import from_dict, write_parquet

    labeled = [({name: row[name] for name in LABELS}, from_dict(row)) for row in rows]
    if labeled:
        write_parquet(folder / f"{GRADIENTS}.parquet", labeled)


@dataclass(frozen=True)
class FinishedRun:
    """The records of a run that has ended."""

    folder: Path
    manifest: Manifest

    def table(self, name: str) -> dict[str, list[Any]]:
        """Columns of a table, step by step; "stability" and "storage" are not in every run.

        Raises:
            StudyError: the Parquet file is missing or damaged.
        """
        path, columns = self.folder / f"{name}.parquet", {**COLUMNS, **OPTIONAL}[name]
        try:
            table = read_parquet(path, columns)
        except TableError as error:
            raise StudyError(
                f"the record {path} is missing or damaged ({error.reason}). {_way_out(self.folder)}"
            ) from None
        return {column: table[column] for column in columns}

    def table_if_any(self, name: str) -> dict[str, list[Any]] | None:
        """The columns of a table that not every run has; None if this one has none.

        Raises:
            StudyError: the Parquet file is damaged.
        """
        return self.table(name) if (self.folder / f"{name}.parquet").exists() else None

    @property
    def has_gradients(self) -> bool:
        """Whether spectra were recorded; runs of old have none."""
        return (self.folder / f"{GRADIENTS}.parquet").exists()

    def gradients(self) -> dict[int, dict[str, Spectrum]]:
        """Spectra of the unscaled gradients, by step and parameter; a run of old has none.

        Raises:
            SpectrumError: the Parquet file is damaged.
        """
        from floatscope.spectrum.storage import read_parquet

        path = self.folder / f"{GRADIENTS}.parquet"
        found: dict[int, dict[str, Spectrum]] = {}
        for labels, spectrum in read_parquet(path) if self.has_gradients else ():
            found.setdefault(labels["step"], {})[labels["parameter"]] = spectrum
        return found


def load(folder: Path) -> FinishedRun:
    """Open the records in `folder`.

    Raises:
        StudyError: the manifest is damaged or of a newer schema, or a table is missing or cut off.
    """
    manifest = read_json(folder / MANIFEST, Manifest, SCHEMA_VERSION, _way_out(folder))
    for table in COLUMNS:
        path = folder / f"{table}.parquet"
        content = path.read_bytes() if path.exists() else b""
        if not (content.startswith(b"PAR1") and content.endswith(b"PAR1") and len(content) > 8):
            raise StudyError(f"the record {path} is missing or damaged. {_way_out(folder)}")
    return FinishedRun(folder, manifest)


def _way_out(folder: Path) -> str:
    return f"Restore it, or move away {folder} and run the study again to make it anew."
