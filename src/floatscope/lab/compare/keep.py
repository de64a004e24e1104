"""`compare.json`, whole or not at all."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from floatscope.files import write_text_atomically
from floatscope.lab.compare.records import SCHEMA_VERSION, Comparison
from floatscope.lab.run.json_files import json_values, read_json

COMPARE = "compare.json"


def keep(comparison: Comparison, folder: Path) -> Path:
    """Write `comparison` into `folder`, in place of an earlier one, and say where.

    Raises:
        DiskError: the disk is full or the folder cannot be written.
    """
    path = folder / COMPARE
    data = json_values(asdict(comparison))
    write_text_atomically(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return path


def load(path: Path) -> Comparison:
    """The comparison in a `compare.json`, or in a folder that has one.

    Raises:
        FileNotFoundError: there is none.
        StudyError: it is damaged, or of a newer schema.
    """
    path = path / COMPARE if path.is_dir() else path
    return read_json(path, Comparison, SCHEMA_VERSION, "Compare again.")
