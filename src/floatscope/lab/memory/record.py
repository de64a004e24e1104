"""Writing the record of a measurement: `memory.json`, and the rows behind it as Parquet tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from floatscope.files import write_text_atomically
from floatscope.lab.memory.neighbors import Neighbors
from floatscope.lab.memory.records import (
    RECORD,
    SCHEMA_VERSION,
    AcceptanceRecord,
    ArmRecord,
    FigureRecord,
    MemoryFile,
    NeighborsRecord,
    StageRecord,
    StepRecord,
    TermRecord,
)
from floatscope.lab.memory.target import Target
from floatscope.lab.memory.witnesses import Arm, acceptance, steps_between
from floatscope.lab.run.environment import environment
from floatscope.lab.run.json_files import json_values
from floatscope.memory.ledger import NAMES, Ledger, Row, Stage
from floatscope.memory.measurement import Measurement
from floatscope.tables import write_parquet

ROWS = {
    "recipe": "VARCHAR", "witness": "VARCHAR", "at": "VARCHAR", "moment": "VARCHAR",
    **dict.fromkeys(NAMES, "VARCHAR"), "bytes": "BIGINT", "count": "BIGINT",
    "reason": "VARCHAR",
}  # fmt: skip
"""Columns of `rows.parquet`: "at" is the stage looked at, "stage" the one that allocates."""
TERMS = {"recipe": "VARCHAR", "term": "VARCHAR", "category": "VARCHAR", "bytes": "BIGINT",
         "reason": "VARCHAR"}  # fmt: skip
"""Columns of `terms.parquet`: from the standard block's formula to what is saved, in order."""

ROUNDING = "rounding"
NO_BLOCKS = (
    "Torch's CPU allocator asks the system for each tensor's own bytes, aligned to 64: it has no "
    "blocks to round up to"
)


def record(
    target: Target, arms: Sequence[Arm], seen: Sequence[Neighbors | None] = ()
) -> dict[str, Any]:
    """Everything but the rows, as plain JSON values: a `MemoryFile`.

    Args:
        target: what was measured.
        arms: its recipes.
        seen: for each of them, what else ran on the machine before it; None where none looked.
    """
    looked = [one for one in seen if one is not None]
    company = [*seen, *[None] * (len(arms) - len(seen))]
    file = MemoryFile(
        schema=SCHEMA_VERSION,
        model=target.spec.model,
        kind=target.kind,
        shape=target.shape,
        optimizer=target.spec.optimizer,
        device=target.spec.device,
        alone=all(one.alone for one in looked) if looked else None,
        environment=environment(_backends(arms)),
        notes=target.notes,
        arms=tuple(_arm(arm, target, one) for arm, one in zip(arms, company, strict=True)),
        between=tuple(
            StepRecord(before=step.before, after=step.after, saved=_terms(step.saved),
                       peak=_terms(step.peaks))
            for step in steps_between(target, arms)
        ),
    )  # fmt: skip
    return json_values(asdict(file))


def _backends(arms: Sequence[Arm]) -> str:
    found = {arm.best.backend for arm in arms if arm.best is not None}
    return ", ".join(sorted(found)) or "native"


def _arm(arm: Arm, target: Target, seen: Neighbors | None) -> ArmRecord:
    best = arm.best
    return ArmRecord(
        recipe=arm.recipe,
        backend=best.backend if best is not None else "",
        stages=tuple(_stage(arm, stage) for stage in Stage),
        saved_bytes=best.saved.total if best is not None else None,
        saved_by_category=_by_category(best.saved) if best is not None else {},
        formula_bytes=arm.terms.rows[0].bytes if arm.terms is not None else None,
        unexplained_bytes=arm.unexplained,
        terms=_terms(arm.terms or Ledger()),
        acceptance=tuple(AcceptanceRecord(**asdict(a)) for a in acceptance(arm, target)),
        peak_rss_bytes=arm.peak_rss_bytes,
        accelerator=tuple(FigureRecord(**figure) for figure in arm.device),
        allocator=tuple(rounding(arm)),
        alone=seen.alone if seen is not None else None,
        neighbors=_neighbors(seen) if seen is not None else None,
        notes=(*arm.notes, *(best.notes if best is not None else ())),
    )


def rounding(arm: Arm) -> Iterator[FigureRecord]:
    """What the allocator adds to the tensors' own bytes when a stage has ended, and at its peak.

    On an accelerator: allocated minus requested, or minus the meter's bytes where the device does
    not say what was requested.
    """
    if arm.measured is None:
        return
    figures = {(f["name"], f["stage"]): f for f in arm.device}
    for stage in arm.measured.stages:
        name = str(stage.stage)
        allocated, asked = (figures.get((n, name)) for n in ("allocated", "requested"))
        live, peak, meaning = 0, 0, NO_BLOCKS
        if allocated is not None:
            live = allocated["live"] - (asked["live"] if asked else stage.live.total)
            tensors = asked["peak"] if asked else stage.peak.total
            peak = None if allocated["peak"] is None else allocated["peak"] - tensors
            meaning = "blocks of the device's allocator, 512 bytes each on CUDA"
        yield FigureRecord(stage=name, name=ROUNDING, live=live, peak=peak, meaning=meaning)


def _neighbors(seen: Neighbors) -> NeighborsRecord:
    load = seen.load if math.isfinite(seen.load) else None
    return NeighborsRecord(**{**asdict(seen), "load": load})


def _terms(ledger: Iterable[Row]) -> tuple[TermRecord, ...]:
    return tuple(
        TermRecord(term=row.term or str(row.category), bytes=row.bytes, reason=row.reason)
        for row in ledger
    )


def _by_category(ledger: Ledger) -> dict[str, int]:
    return {str(category): size for category, size in ledger.by_category().items()}


def _stage(arm: Arm, stage: Stage) -> StageRecord:
    live, peak = arm.formula.get(stage, (None, None))
    traced, measured, best = (
        witness[stage] if witness is not None else None
        for witness in (arm.traced, arm.measured, arm.best)
    )
    return StageRecord(
        stage=str(stage),
        live_by_formula=_total(live),
        peak_by_formula=_total(peak),
        live_by_trace=_total(traced.live if traced else None),
        peak_by_trace=_total(traced.peak if traced else None),
        live_by_meter=_total(measured.live if measured else None),
        peak_by_meter=_total(measured.peak if measured else None),
        live_by_category=_by_category(best.live) if best else {},
        peak_by_category=_by_category(best.peak) if best else {},
        engine=best.engine if best else None,
    )


def _total(ledger: Ledger | None) -> int | None:
    return ledger.total if ledger is not None else None


def keep(
    folder: Path, target: Target, arms: Sequence[Arm], seen: Sequence[Neighbors | None] = ()
) -> None:
    """Write the record into `folder`, in place of an earlier one: tables first, the JSON last.

    Raises:
        DiskError: the disk is full or the folder cannot be written.
    """
    data = record(target, arms, seen)  # before its own tables make the working tree differ
    write_parquet(folder / "rows.parquet", ROWS, list(_rows(arms)))
    terms = [
        {"recipe": arm.recipe, "term": r.term, "category": str(r.category), "bytes": r.bytes,
         "reason": r.reason}
        for arm in arms
        for r in arm.terms or Ledger()
    ]  # fmt: skip
    write_parquet(folder / "terms.parquet", TERMS, terms)
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    write_text_atomically(folder / RECORD, text + "\n")


def _rows(arms: Sequence[Arm]) -> Iterator[dict[str, Any]]:
    for arm in arms:
        for stage, (live, peak) in arm.formula.items():
            yield from _of(arm.recipe, "formula", stage, "live", live)
            yield from _of(arm.recipe, "formula", stage, "peak", peak or Ledger())
        for witness in (arm.traced, arm.measured):
            if witness is not None:
                yield from _of_witness(arm.recipe, witness)


def _of_witness(recipe: str, witness: Measurement) -> Iterator[dict[str, Any]]:
    yield from _of(recipe, witness.witness, Stage.FORWARD, "saved", witness.saved)
    for stage in witness.stages:
        yield from _of(recipe, witness.witness, stage.stage, "live", stage.live)
        yield from _of(recipe, witness.witness, stage.stage, "peak", stage.peak)


def _of(
    recipe: str, witness: str, stage: Stage, moment: str, ledger: Ledger
) -> Iterator[dict[str, Any]]:
    where = {"recipe": recipe, "witness": witness, "at": str(stage), "moment": moment}
    for row in ledger:
        yield {**where, **_plain(row)}


def _plain(row: Row) -> dict[str, Any]:
    return {**{name: str(getattr(row, name)) for name in NAMES}, "bytes": row.bytes,
            "count": row.count, "reason": row.reason}  # fmt: skip
