"""`python -m floatscope.lab.schemas FOLDER`: write the JSON Schema of every record to FOLDER."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from floatscope.lab.compare import records as compare_records
from floatscope.lab.decision import records as decision_records
from floatscope.lab.lecture import keep as lecture
from floatscope.lab.memory import records as memory_records
from floatscope.lab.probe import records as probe_records
from floatscope.lab.run import records
from floatscope.lab.study import folder
from floatscope.lab.study.stress_summary import StressSummary
from floatscope.lab.study.summary import Summary
from floatscope.spectrum.storage import COLUMNS

_JSON_TYPES = {
    "INTEGER": {"type": "integer"},
    "BIGINT": {"type": "integer"},
    "BOOLEAN": {"type": "boolean"},
    "VARCHAR": {"type": "string"},
    # Numbers that JSON cannot hold are strings.
    "DOUBLE": {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]},
}

SPECTRUM = {
    "amax": {"type": "string"},
    "finest": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "octaves": {"type": "array", "items": {"type": "integer"}},
    "classes": {"type": "string"},
}
"""Fields of a spectrum that JSON holds otherwise than a table (`floatscope.spectrum.storage`)."""


def schemas() -> dict[str, dict[str, Any]]:
    """Schemas by file name: manifests, plans, journals, probes, memory, what commands print."""
    from pydantic import TypeAdapter

    tables = {**records.COLUMNS, **records.OPTIONAL}
    lines = [_line(table, columns) for table, columns in tables.items()]
    lines.append(_line(records.GRADIENTS, {**records.LABELS, **COLUMNS}, SPECTRUM))
    return {
        f"manifest-{records.SCHEMA_VERSION}": TypeAdapter(records.Manifest).json_schema(),
        f"study-{folder.SCHEMA_VERSION}": TypeAdapter(folder.StudyFile).json_schema(),
        f"journal-{records.SCHEMA_VERSION}": {"title": "A line of journal.jsonl", "anyOf": lines},
        f"compare-{compare_records.SCHEMA_VERSION}": TypeAdapter(
            compare_records.Comparison
        ).json_schema(),
        f"probe-{probe_records.SCHEMA_VERSION}": TypeAdapter(probe_records.ProbeFile).json_schema(),
        f"memory-{memory_records.SCHEMA_VERSION}": TypeAdapter(
            memory_records.MemoryFile
        ).json_schema(),
        f"decision-{decision_records.SCHEMA_VERSION}": TypeAdapter(
            decision_records.Decision
        ).json_schema(),
        f"summary-{folder.SCHEMA_VERSION}": TypeAdapter(Summary).json_schema(),
        f"stress-{folder.SCHEMA_VERSION}": TypeAdapter(StressSummary).json_schema(),
        **{
            f"lecture-demo-{number}-{lecture.SCHEMA_VERSION}": lecture.schema(number)
            for number in lecture.KINDS
        },
    }


def _line(table: str, columns: dict[str, str], own: Mapping[str, Any] | None = None) -> Any:
    types = {name: _JSON_TYPES.get(kind, {}) for name, kind in columns.items()}
    properties = {**types, **(own or {})}
    return {
        "type": "object",
        "properties": {"table": {"const": table}, **properties},
        "required": ["table", *columns],
        "additionalProperties": False,
    }


def main(folder: Path) -> None:
    """Write each schema to `folder`, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas().items():
        (folder / f"{name}.schema.json").write_text(json.dumps(schema, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
