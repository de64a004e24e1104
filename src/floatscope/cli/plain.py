"""Results as plain text: tables and JSON, for verbs that start fast."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length as columns, each as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def print_json(data: Any) -> None:
    """Print data that JSON can hold as it is; escaped where the output is not Unicode."""
    import json

    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=not is_unicode), flush=True)
