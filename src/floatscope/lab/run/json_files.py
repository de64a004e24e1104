"""JSON files with a schema number, read back into the dataclass they were written from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from floatscope.errors import StudyError

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
