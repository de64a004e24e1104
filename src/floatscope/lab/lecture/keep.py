"""The demonstrations' records on disk: `DIR/lecture/demo-N.json`, its schema beside it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from floatscope.files import write_text_atomically
from floatscope.lab.lecture.records import KINDS, SCHEMA_VERSION
from floatscope.lab.run.environment import Environment
from floatscope.lab.run.json_files import json_values, read_json

FOLDER = "lecture"

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class DemoFile(Generic[_T]):
    """A demonstration in a file."""

    schema: int = SCHEMA_VERSION
    demonstration: int
    environment: Environment
    seconds: float
    """It took so long."""
    record: _T


def path_of(folder: Path, number: int) -> Path:
    """Where a demonstration's record is in a folder."""
    return folder / FOLDER / f"demo-{number}.json"


def write(folder: Path, file: DemoFile[Any]) -> Path:
    """Write a record and its schema; returns the record's path.

    Raises:
        DiskError: the folder cannot be written.
    """
    path = path_of(folder, file.demonstration)
    described = json.dumps(schema(file.demonstration), indent=1)
    write_text_atomically(path.with_suffix(".schema.json"), described + "\n")
    text = json.dumps(values_of(file), indent=1, ensure_ascii=False, allow_nan=False)
    write_text_atomically(path, text + "\n")
    return path


def values_of(file: DemoFile[Any]) -> dict[str, Any]:
    """A record as JSON holds it; numbers that JSON does not have are strings."""
    return json_values(asdict(file))


def read(folder: Path, number: int) -> DemoFile[Any]:
    """The record of a demonstration in a folder.

    Raises:
        FileNotFoundError: there is none.
        StudyError: it is damaged, or of a newer schema.
    """
    way_out = f"Make it again with: floatscope lecture {number} --out {folder}"
    return read_json(path_of(folder, number), _kind(number), SCHEMA_VERSION, way_out)


def schema(number: int) -> dict[str, Any]:
    """JSON Schema of a demonstration's file."""
    from pydantic import TypeAdapter

    return _with_names(TypeAdapter(_kind(number)).json_schema())


def _kind(number: int) -> Any:
    return DemoFile[KINDS[number]]  # pyright: ignore[reportInvalidTypeForm]


def _with_names(described: Any) -> Any:
    """A schema whose numbers may be the strings that stand for what JSON does not have."""
    if isinstance(described, list):
        return [_with_names(part) for part in described]
    if not isinstance(described, dict):
        return described
    if described.get("type") == "number":
        rest = {k: v for k, v in described.items() if k != "type"}
        return {**rest, "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
    return {key: _with_names(part) for key, part in described.items()}
