"""The log of a run while it is alive: one append-only JSON-lines file, a record a line.

Numbers that JSON cannot hold are the strings "NaN", "Infinity" and "-Infinity". Every record is
flushed when written and made durable at each checkpoint; a line cut off by a kill is dropped when
the run resumes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floatscope.errors import StudyError
from floatscope.files import disk_errors

Record = dict[str, Any]

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_line(record: Record) -> str:
    """One line of JSON, without the line end."""
    return json.dumps({k: json_value(v) for k, v in record.items()}, allow_nan=False)


def from_line(line: str) -> Record:
    """The record of a line.

    Raises:
        ValueError: not a JSON object.
    """
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return {k: _decoded(v) for k, v in record.items()}


def json_value(value: Any) -> Any:
    """`value`, or its name as a string if it is a number that JSON cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _decoded(value: Any) -> Any:
    return _NAMES.get(value, value) if isinstance(value, str) else value


class Journal:
    """Appends records to `path`, after discarding all beyond the first `keep` bytes."""

    def __init__(self, path: Path, keep: int) -> None:
        self._path = path
        with disk_errors(path):
            self._file = open(path, "ab")  # noqa: SIM115, closed by close()
            self._file.truncate(keep)
            self._file.seek(0, os.SEEK_END)

    def append(self, record: Record) -> None:
        with disk_errors(self._path):
            self._file.write(to_line(record).encode() + b"\n")
            self._file.flush()

    def sync(self) -> tuple[int, str]:
        """Make all records durable; returns the file's length and the sha256 of its content."""
        with disk_errors(self._path):
            os.fsync(self._file.fileno())
        content = self._path.read_bytes()
        return len(content), hashlib.sha256(content).hexdigest()

    def close(self) -> None:
        self._file.close()


def check(path: Path, length: int, sha256: str) -> None:
    """Refuse a journal whose first `length` bytes are not those that a checkpoint saw.

    Raises:
        StudyError: the file is missing, shorter, or changed.
    """
    content = path.read_bytes() if path.exists() else b""
    if len(content) < length or hashlib.sha256(content[:length]).hexdigest() != sha256:
        raise StudyError(
            f"{path} is damaged: its beginning is not what the checkpoint beside it was made with. "
            f"To train this run again from its first step, move away the folder {path.parent}."
        )


def read(path: Path) -> Iterator[Record]:
    """The records of `path`; a last line without an end is still being written and is left out.

    Raises:
        StudyError: a complete line is no record.
    """
    content = path.read_bytes()
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            yield from_line(line.decode())
        except ValueError:
            raise StudyError(f"{path}, line {number}, is damaged: not a JSON record.") from None
