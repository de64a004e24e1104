"""Numbers from records, each with its place: what is stated can be looked up again.

A place is a file and a field. In JSON a field is a path, such as

    states[name=end of training].totals[format=fp16,exponent=0].zeros

where a bracket takes the first element whose fields are as named, or the one of that number. In
Parquet it is a function of a column, such as `mean(zero_fraction)`, `last(loss)` or
`mean(loss[0:100])`, with rows counted from 0.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from floatscope.errors import StudyError
from floatscope.lab.decision.records import Evidence
from floatscope.lab.run.json_files import json_values
from floatscope.tables import TableError, read_parquet

_FUNCTIONS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": sum,
    "max": max,
    "min": min,
    "last": lambda values: values[-1],
}
_CALL = re.compile(r"(\w+)\((\w+)(?:\[(-?\d*):(-?\d*)\])?\)")
_STEP = re.compile(r"(\w+)((?:\[[^\]]+\])?)")


class Records:
    """The records below a study's folder, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[Path, Any] = {}

    def cite(self, name: str, record: Path | str, field: str) -> Evidence:
        """The value of `field` in `record`, with its place.

        Args:
            name: what the value is, for people.
            record: a file below the root, or its path from there.
            field: see this module.

        Raises:
            StudyError: there is no such file or field.
        """
        path = self.root / record
        value = json_values(self._value(path, field))
        return Evidence(
            name=name, value=value, record=path.relative_to(self.root).as_posix(), field=field
        )

    def _value(self, path: Path, field: str) -> Any:
        content = self._content(path)
        try:
            return _called(content, field) if path.suffix == ".parquet" else _walked(content, field)
        except (KeyError, IndexError, StopIteration, TypeError, ValueError):
            raise StudyError(f"the record {path} has no {field!r}.") from None

    def _content(self, path: Path) -> Any:
        if path not in self._read:
            try:
                is_table = path.suffix == ".parquet"
                text = None if is_table else path.read_text(encoding="utf-8")
                self._read[path] = read_parquet(path) if text is None else json.loads(text)
            except (OSError, ValueError, TableError) as error:
                raise StudyError(f"the record {path} cannot be read: {error}") from None
        return self._read[path]


def _called(table: dict[str, list[Any]], field: str) -> Any:
    match = _CALL.fullmatch(field)
    if match is None:
        raise ValueError(field)
    function, column, start, stop = match.groups()
    rows = slice(int(start) if start else None, int(stop) if stop else None)
    return _FUNCTIONS[function](table[column][rows])


def _walked(value: Any, field: str) -> Any:
    for step in re.split(r"\.(?![^\[]*\])", field):
        match = _STEP.fullmatch(step)
        if match is None:
            raise ValueError(field)
        name, bracket = match.groups()
        value = value[name]
        if bracket.strip("[]").isdigit():
            value = value[int(bracket[1:-1])]
        elif bracket:
            wanted = dict(part.split("=", 1) for part in bracket[1:-1].split(","))
            value = next(v for v in value if all(str(v[k]) == w for k, w in wanted.items()))
    return value
