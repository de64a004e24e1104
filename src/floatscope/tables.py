"""Tables as Parquet files, written whole or not at all and read as columns; DuckDB does both."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatscope.errors import FloatscopeError
from floatscope.files import DiskError, write_atomically

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ROWS_AT_A_TIME = 100
"""Rows an INSERT. One by one, DuckDB takes ten times as long."""


class TableError(FloatscopeError):
    """A table is missing or damaged."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the table {path} is missing or damaged ({reason}).")
        self.reason = reason
        """What is wrong, in the words of DuckDB where it found out."""


def write_parquet(
    path: Path, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write a table, atomically; the same rows give the same bytes.

    Args:
        path: what the file is called; its folder is made if it is not there.
        columns: names and DuckDB types, in order; at least one.
        rows: each with a value, or None, for every column. What else a row holds is left out.

    Raises:
        DiskError: the disk is full or the folder cannot be written.
        KeyError: a row lacks a column.
    """
    import duckdb

    declared = ", ".join(f"{_name(name)} {kind}" for name, kind in columns.items())
    # Each value is cast by itself. Left alone, VALUES first finds a common type for its rows.
    marks = "(" + ", ".join(f"?::{kind}" for kind in columns.values()) + ")"
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t ({declared})")
        for start in range(0, len(rows), _ROWS_AT_A_TIME):
            part = rows[start : start + _ROWS_AT_A_TIME]
            values = [row[name] for row in part for name in columns]
            connection.execute(f"INSERT INTO t VALUES {', '.join([marks] * len(part))}", values)

        def copy(temporary: Path) -> None:
            to = _quoted(str(temporary))
            try:
                connection.execute(f"COPY t TO {to} (FORMAT parquet, COMPRESSION zstd)")
            except duckdb.IOException as error:
                why = str(error).splitlines()[0]
                raise DiskError(f"{path} could not be written: {why}") from error

        write_atomically(path, copy)


def read_parquet(path: Path, columns: Iterable[str] = ()) -> dict[str, list[Any]]:
    """The columns of a table by name, in the file's order.

    Args:
        path: one file; nothing in its name is taken for a pattern or for a partition.
        columns: names that must be among them.

    Raises:
        TableError: no such file, no Parquet file, or a column is missing.
    """
    import duckdb

    file = _quoted(glob.escape(str(path)))
    try:
        with _reader(os.getpid()).cursor() as connection:
            # A folder called "lr=1" would otherwise become a column of that name.
            query = f"SELECT * FROM read_parquet({file}, hive_partitioning = false)"
            result = connection.execute(query)
            names = [column[0] for column in result.description]
            rows = result.fetchall()
    except duckdb.Error as error:
        raise TableError(path, str(error).splitlines()[0]) from None
    for name in columns:
        if name not in names:
            raise TableError(path, f"it has no column {name!r}")
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


@cache
def _reader(process: int) -> DuckDBPyConnection:
    """A database in memory, which takes ten times as long to open as a table to read.

    Each process has its own. Nothing of a file is kept: it may be another one by the next time.
    """
    import duckdb

    return duckdb.connect(config={"threads": 1, "enable_external_file_cache": False})


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
