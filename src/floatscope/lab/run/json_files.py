"""JSON files with a schema number, read back into what they were written from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from floatscope.errors import StudyError
from floatscope.lab.run.journal import json_value

_T = TypeVar("_T")


def read_json(path: Path, kind: type[_T], newest: int, way_out: str) -> _T:
    """The `kind` in `path`, its fields checked.

    Args:
        path: a JSON file with a field `schema`.
        kind: a dataclass.
        newest: the newest schema that this floatscope reads.
        way_out: what a user can do about a damaged file.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        StudyError: damaged, or of a newer schema.
    """
    from pydantic import TypeAdapter, ValidationError

    content = path.read_bytes()
    try:
        values = json.loads(content)
        version = values["schema"]
    except (ValueError, KeyError, TypeError):
        raise StudyError(f"the record {path} is damaged. {way_out}") from None
    if isinstance(version, int) and version > newest:
        raise StudyError(
            f"{path} has schema {version}; this floatscope reads up to {newest}. Update it."
        )
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise StudyError(f"the record {path} is damaged at {where!r}. {way_out}") from None


def json_values(value: Any) -> Any:
    """Nested dictionaries and sequences with every number that JSON cannot hold as a string."""
    if isinstance(value, dict):
        return {str(key): json_values(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(held) for held in value]
    return json_value(value)
