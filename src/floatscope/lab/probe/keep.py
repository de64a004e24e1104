"""Write a probe to disk: the tables first, `probe.json` last, each whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from floatscope.files import write_text_atomically
from floatscope.lab.probe.answers import summary
from floatscope.lab.probe.records import Backward, Measured, Prediction, Probe
from floatscope.lab.run.json_files import json_values
from floatscope.spectrum import storage
from floatscope.tables import write_parquet

PROBE = "probe.json"
_TYPES = {"str": "VARCHAR", "int": "BIGINT", "float": "DOUBLE"}


def keep(probe: Probe, folder: Path) -> None:
    """Write `probe` into `folder`, in place of an earlier one.

    Raises:
        DiskError: the disk is full or the folder cannot be written.
    """
    spectra = (
        ({"state": state.name, "name": name}, spectrum)
        for state in probe.states
        for name, spectrum in state.spectra.items()
    )
    storage.write_parquet(folder / "spectra.parquet", spectra)
    states = probe.states
    _table(folder, "predictions", Prediction, ((s.name, s.predictions) for s in states))
    _table(folder, "measured", Measured, ((s.name, s.measured) for s in states))
    _table(folder, "backward", Backward, ((s.name, s.backward) for s in states))
    _table(folder, "on_the_way", Backward, ((s.name, s.on_the_way) for s in states))
    data = json_values(asdict(summary(probe)))
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    write_text_atomically(folder / PROBE, text + "\n")


def _table(
    folder: Path, name: str, kind: type, states: Iterable[tuple[str, Sequence[Any]]]
) -> None:
    columns = {"state": "VARCHAR", **{f.name: _TYPES[str(f.type)] for f in fields(kind)}}
    rows = [{"state": state, **asdict(row)} for state, found in states for row in found]
    write_parquet(folder / f"{name}.parquet", columns, rows)
