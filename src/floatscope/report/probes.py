"""The record of a probe, read back: `probe.json` and the tables beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from floatscope.errors import StudyError
from floatscope.lab.probe.keep import PROBE
from floatscope.lab.probe.records import (
    SCHEMA_VERSION,
    Backward,
    Measured,
    ProbeFile,
    StateSummary,
)
from floatscope.lab.run.json_files import read_json
from floatscope.spectrum import storage
from floatscope.spectrum.spectrum import Spectrum
from floatscope.tables import TableError, read_parquet

_Row = TypeVar("_Row", Measured, Backward)


@dataclass(frozen=True, kw_only=True)
class ProbedState:
    """One state of the model, all of its numbers."""

    summary: StateSummary
    spectra: dict[str, Spectrum]
    """Of each parameter's fp32 gradient."""
    measured: tuple[Measured, ...]
    backward: tuple[Backward, ...]
    on_the_way: tuple[Backward, ...]

    @property
    def name(self) -> str:
        return self.summary.name

    @cached_property
    def total(self) -> Spectrum:
        """The spectrum of the whole gradient."""
        return Spectrum.sum(self.spectra.values())


@dataclass(frozen=True, kw_only=True)
class ProbeRecord:
    """A probe on disk."""

    folder: Path
    file: ProbeFile
    states: tuple[ProbedState, ...]

    @property
    def label(self) -> str:
        return self.file.label

    @property
    def recipe(self) -> str:
        """Of the run that was probed; empty if it was no run."""
        return self.file.origin.get("plan", {}).get("recipe", {}).get("name", "")

    def step_of(self, state: ProbedState) -> int | None:
        """After how many steps the state was reached; None if the record does not say."""
        return {"initialization": 0, "end of training": self.file.origin.get("steps_done")}.get(
            state.name
        )


def probe_folders(study: Path) -> Iterator[Path]:
    """Where the probes of a study lie: in `probe/`, or beside their runs."""
    for pattern in (f"probe/{PROBE}", f"probe/*/{PROBE}", f"runs/*/probe/{PROBE}"):
        yield from (path.parent for path in sorted(study.glob(pattern)))


def read_probe(folder: Path) -> ProbeRecord:
    """The probe in `folder`.

    Raises:
        StudyError, SpectrumError: a file is missing, damaged or of a newer schema.
    """
    way_out = "Run floatscope probe again to make it anew."
    file = read_json(folder / PROBE, ProbeFile, SCHEMA_VERSION, way_out)
    spectra: dict[str, dict[str, Spectrum]] = {}
    for labels, spectrum in storage.read_parquet(folder / "spectra.parquet"):
        spectra.setdefault(labels["state"], {})[labels["name"]] = spectrum
    measured = _by_state(folder, "measured", Measured)
    backward = _by_state(folder, "backward", Backward)
    on_the_way = _by_state(folder, "on_the_way", Backward)
    states = tuple(
        ProbedState(
            summary=state,
            spectra=spectra.get(state.name, {}),
            measured=measured.get(state.name, ()),
            backward=backward.get(state.name, ()),
            on_the_way=on_the_way.get(state.name, ()),
        )
        for state in file.states
    )
    return ProbeRecord(folder=folder, file=file, states=states)


def _by_state(folder: Path, table: str, kind: type[_Row]) -> dict[str, tuple[_Row, ...]]:
    path = folder / f"{table}.parquet"
    names = [field.name for field in fields(kind)]
    try:
        columns = read_parquet(path, ["state", *names])
    except TableError as error:
        raise StudyError(f"{error} Run floatscope probe again to make it anew.") from None
    found: dict[str, list[Any]] = {}
    for state, *values in zip(columns["state"], *(columns[n] for n in names), strict=True):
        found.setdefault(state, []).append(kind(**dict(zip(names, values, strict=True))))
    return {state: tuple(rows) for state, rows in found.items()}
