"""What a memory measurement found, and the files it is kept in; without Torch, for readers.

`memory.json` says what was measured, where, and what came out stage by stage; `rows.parquet` has
every row of every ledger, and `terms.parquet` the way from the formula to what is saved. Sizes are
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from floatscope.lab.run.environment import Environment
from floatscope.lab.run.json_files import read_json

SCHEMA_VERSION = 1
RECORD = "memory.json"


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """One stage by up to three witnesses; null where a witness has no figure."""

    stage: str
    live_by_formula: int | None
    peak_by_formula: int | None
    live_by_trace: int | None
    peak_by_trace: int | None
    live_by_meter: int | None
    peak_by_meter: int | None
    live_by_category: dict[str, int] = field(default_factory=dict)
    """By the meter, else by the trace; the same of the peak."""
    peak_by_category: dict[str, int] = field(default_factory=dict)
    engine: int | None = None
    """The most that the engine of recipes holds for itself at any moment of the stage: fp32 copies
    of emulation and quantized operands."""


@dataclass(frozen=True, kw_only=True)
class TermRecord:
    """A signed step from one sum to another; the first is what it starts from."""

    term: str
    bytes: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class AcceptanceRecord:
    """A sentence that the figures bear out, or do not."""

    what: str
    holds: bool
    says: str


@dataclass(frozen=True, kw_only=True)
class FigureRecord:
    """A figure of a device's allocator in one stage."""

    stage: str
    name: str
    live: int
    peak: int | None
    """Null where the device keeps no peak."""
    meaning: str


@dataclass(frozen=True, kw_only=True)
class NeighborsRecord:
    """What else ran on the machine before a measurement."""

    busy: tuple[str, ...]
    foreign_cores: float
    load: float | None
    """The system's load of the last minute; null where it has none."""
    on_device: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ArmRecord:
    """One recipe."""

    recipe: str
    backend: str
    stages: tuple[StageRecord, ...]
    saved_bytes: int | None
    """What the first forward keeps for backward; null if nothing was measured or traced."""
    saved_by_category: dict[str, int]
    formula_bytes: int | None
    """What the standard block's formula says of it."""
    unexplained_bytes: int
    terms: tuple[TermRecord, ...]
    """From the formula to `saved_bytes`."""
    acceptance: tuple[AcceptanceRecord, ...]
    peak_rss_bytes: int
    """Of the measuring process, its libraries included; 0 where nothing was measured."""
    accelerator: tuple[FigureRecord, ...]
    """The device's own figures."""
    allocator: tuple[FigureRecord, ...] = ()
    """What the allocator adds to the tensors' bytes by rounding, stage by stage."""
    alone: bool | None
    """Null where nobody looked."""
    neighbors: NeighborsRecord | None
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """From one recipe to the next."""

    before: str
    after: str
    saved: tuple[TermRecord, ...]
    peak: tuple[TermRecord, ...]
    """From the one's highest peak to the other's."""


@dataclass(frozen=True, kw_only=True)
class MemoryFile:
    """`memory.json`."""

    schema: int
    model: str
    kind: Literal["laboratory", "factory", "config"]
    shape: dict[str, Any]
    """Numbers that decide the memory, where they are known."""
    optimizer: str
    device: str
    alone: bool | None
    """Whether every measurement was; null where nobody looked."""
    environment: Environment
    notes: tuple[str, ...]
    arms: tuple[ArmRecord, ...]
    between: tuple[StepRecord, ...] = ()


def read_memory(folder: Path) -> MemoryFile:
    """The record in `folder`.

    Raises:
        FileNotFoundError, NotADirectoryError: there is none.
        StudyError: damaged, or of a newer schema.
    """
    return read_json(folder / RECORD, MemoryFile, SCHEMA_VERSION, "Measure again.")
