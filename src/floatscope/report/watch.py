"""Waiting for records to change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 2.0
"""Between two looks at a folder. A build takes a few seconds itself."""
RECORDS = ("*.json", "*.jsonl", "*.parquet")


def changes(folder: Path, page: Path, seconds: float = SECONDS) -> Iterator[None]:
    """Each time that the records in `folder` have changed; never ends by itself.

    Changes count from this call on, not from the first look at the iterator: what is written while
    a page is built is seen after it.
    """
    return _after(state(folder, page), folder, page, seconds)


def _after(
    before: dict[Path, tuple[int, int]], folder: Path, page: Path, seconds: float
) -> Iterator[None]:
    while True:
        time.sleep(seconds)
        now = state(folder, page)
        if now != before:
            before = now
            yield


def state(folder: Path, page: Path) -> dict[Path, tuple[int, int]]:
    """Every record's size and time of change; the page that is built from them does not count."""
    found = {}
    for pattern in RECORDS:
        for path in folder.rglob(pattern):
            try:
                seen = path.stat()
            except FileNotFoundError:  # a journal that became tables meanwhile
                continue
            if path != page:
                found[path] = (seen.st_size, seen.st_mtime_ns)
    return found
