"""The record of a memory measurement, read back: `memory.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floatscope.errors import StudyError

SCHEMA_VERSION = 1
"""That of `floatscope.lab.memory.record`, which needs Torch to be imported (a test compares)."""
RECORD = "memory.json"
_STAGES = ("build", "forward", "backward", "first optimizer step")


@dataclass(frozen=True, kw_only=True)
class MemoryRecord:
    """Bytes by recipe and stage; `data` is the record itself."""

    folder: Path
    data: dict[str, Any]

    @property
    def arms(self) -> list[dict[str, Any]]:
        return self.data["arms"]

    @property
    def fp32(self) -> dict[str, Any] | None:
        """The arm of fp32 whose parameters are known; None if the record has none."""
        return next((a for a in self.arms if a["recipe"] == "fp32" and _parameters(a)), None)

    @property
    def num_parameters(self) -> int | None:
        """From the fp32 bytes of the parameters after build; None if the record has none."""
        return _parameters(self.fp32) // 4 if self.fp32 is not None else None


def _parameters(arm: dict[str, Any]) -> int:
    return stage_of(arm, "build").get("live_by_category", {}).get("parameters", 0)


def stage_of(arm: dict[str, Any], stage: str) -> dict[str, Any]:
    """What was found in one stage."""
    return next(s for s in arm["stages"] if s["stage"] == stage)


def live(arm: dict[str, Any], stage: str) -> int | None:
    """Bytes alive at the end of a stage: the meter's, else the trace's."""
    found = stage_of(arm, stage)
    return found["live_by_meter"] if found["live_by_meter"] is not None else found["live_by_trace"]


def memory_folders(study: Path) -> list[Path]:
    """Where the memory records of a study lie."""
    return sorted(path.parent for path in study.glob(f"memory/**/{RECORD}"))


def by_weight(records: Iterable[MemoryRecord], attention: str) -> tuple[MemoryRecord, ...]:
    """Those with fp32 first, of these the one with the study's own `attention`."""

    def weight(record: MemoryRecord) -> tuple[bool, bool]:
        own = record.data["shape"].get("attention") == attention
        return record.fp32 is None, not own

    return tuple(sorted(records, key=weight))


def read_memory(folder: Path) -> MemoryRecord:
    """The memory record in `folder`.

    Raises:
        StudyError: it is damaged, or of a newer schema.
    """
    path = folder / RECORD
    try:
        data = json.loads(path.read_bytes())
        version = data["schema"]
        for arm in data["arms"]:
            _ = arm["recipe"], arm["terms"], [live(arm, stage) for stage in _STAGES]
    except (ValueError, KeyError, TypeError, StopIteration):
        raise StudyError(f"the record {path} is damaged. Measure again.") from None
    if version > SCHEMA_VERSION:
        raise StudyError(
            f"{path} has schema {version}; this floatscope reads up to {SCHEMA_VERSION}. Update it."
        )
    return MemoryRecord(folder=folder, data=data)
