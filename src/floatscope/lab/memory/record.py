"""The record of a measurement: `memory.json`, and the rows behind it as Parquet tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from floatscope.files import write_text_atomically
from floatscope.lab.memory.neighbors import Neighbors
from floatscope.lab.memory.target import Target
from floatscope.lab.memory.witnesses import Arm, acceptance
from floatscope.lab.run.environment import environment
from floatscope.lab.run.json_files import json_values
from floatscope.memory.ledger import NAMES, Ledger, Row, Stage
from floatscope.memory.measurement import Measurement
from floatscope.tables import write_parquet

SCHEMA_VERSION = 1
RECORD = "memory.json"

ROWS = {
    "recipe": "VARCHAR", "witness": "VARCHAR", "at": "VARCHAR", "moment": "VARCHAR",
    **dict.fromkeys(NAMES, "VARCHAR"), "bytes": "BIGINT", "count": "BIGINT",
    "reason": "VARCHAR",
}  # fmt: skip
"""Columns of `rows.parquet`: "at" is the stage looked at, "stage" the one that allocates."""
TERMS = {"recipe": "VARCHAR", "term": "VARCHAR", "category": "VARCHAR", "bytes": "BIGINT",
         "reason": "VARCHAR"}  # fmt: skip
"""Columns of `terms.parquet`: from the standard block's formula to what is saved, in order."""


def record(
    target: Target, arms: Sequence[Arm], seen: Sequence[Neighbors | None] = ()
) -> dict[str, Any]:
    """Everything but the rows, as plain JSON values; sizes in bytes.

    Args:
        target: what was measured.
        arms: its recipes.
        seen: for each of them, what else ran on the machine before it; None where none looked.
    """
    looked = [one for one in seen if one is not None]
    return json_values(
        {
            "schema": SCHEMA_VERSION,
            "model": target.spec.model,
            "kind": target.kind,
            "shape": target.shape,
            "optimizer": target.spec.optimizer,
            "device": target.spec.device,
            "alone": all(one.alone for one in looked) if looked else None,
            "environment": asdict(environment(_backends(arms))),
            "notes": list(target.notes),
            "arms": [_arm(arm, target, one) for arm, one in zip(arms, [*seen, *[None] * len(arms)],
                                                                strict=False)],
        }
    )  # fmt: skip


def _backends(arms: Sequence[Arm]) -> str:
    found = {arm.best.backend for arm in arms if arm.best is not None}
    return ", ".join(sorted(found)) or "native"


def _arm(arm: Arm, target: Target, seen: Neighbors | None) -> dict[str, Any]:
    best = arm.best
    notes = [*arm.notes, *(best.notes if best is not None else ())]
    return {
        "recipe": arm.recipe,
        "backend": best.backend if best is not None else "",
        "stages": [_stage(arm, stage) for stage in Stage],
        "saved_bytes": best.saved.total if best is not None else None,
        "saved_by_category": _by_category(best.saved) if best is not None else {},
        "formula_bytes": arm.terms.rows[0].bytes if arm.terms is not None else None,
        "unexplained_bytes": arm.unexplained,
        "terms": [
            {"term": r.term, "bytes": r.bytes, "reason": r.reason} for r in arm.terms or Ledger()
        ],
        "acceptance": [asdict(a) for a in acceptance(arm, target)],
        "peak_rss_bytes": arm.peak_rss_bytes,
        "accelerator": list(arm.device),
        "alone": seen.alone if seen is not None else None,
        "neighbors": asdict(seen) if seen is not None else None,
        "notes": notes,
    }


def _by_category(ledger: Ledger) -> dict[str, int]:
    return {str(category): size for category, size in ledger.by_category().items()}


def _stage(arm: Arm, stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = {"stage": str(stage)}
    live, peak = arm.formula.get(stage, (None, None))
    for name, ledger in (("live", live), ("peak", peak)):
        found[f"{name}_by_formula"] = ledger.total if ledger is not None else None
    for name, witness in (("trace", arm.traced), ("meter", arm.measured)):
        for moment in ("live", "peak"):
            ledger = getattr(witness[stage], moment) if witness is not None else None
            found[f"{moment}_by_{name}"] = ledger.total if ledger is not None else None
    if arm.best is not None:
        found["live_by_category"] = _by_category(arm.best[stage].live)
        found["peak_by_category"] = _by_category(arm.best[stage].peak)
    return found


def keep(
    folder: Path, target: Target, arms: Sequence[Arm], seen: Sequence[Neighbors | None] = ()
) -> None:
    """Write the record into `folder`, in place of an earlier one: tables first, the JSON last.

    Raises:
        DiskError: the disk is full or the folder cannot be written.
    """
    write_parquet(folder / "rows.parquet", ROWS, list(_rows(arms)))
    terms = [
        {"recipe": arm.recipe, "term": r.term, "category": str(r.category), "bytes": r.bytes,
         "reason": r.reason}
        for arm in arms
        for r in arm.terms or Ledger()
    ]  # fmt: skip
    write_parquet(folder / "terms.parquet", TERMS, terms)
    data = record(target, arms, seen)
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
