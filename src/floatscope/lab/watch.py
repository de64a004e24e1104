"""How a computation tells how far it is, without knowing who shows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Done = Callable[[int], None]
"""Told how many steps are done."""
Watch = Callable[[str, int], AbstractContextManager[Done]]
"""Called with what is done and in how many steps, and held open while it is."""

SECONDS_OF_SILENCE = 10.0


@contextmanager
def unwatched(_what: str, _total: int) -> Iterator[Done]:
    """Shows nothing."""
    yield lambda _number: None


@contextmanager
def lines_on_stderr(what: str, total: int) -> Iterator[Done]:
    """A line at the beginning, and one every ten seconds."""
    note_on_stderr(f"{what}: {total} steps")
    spoke = time.monotonic()

    def done(number: int) -> None:
        nonlocal spoke
        if time.monotonic() - spoke > SECONDS_OF_SILENCE:
            spoke = time.monotonic()
            note_on_stderr(f"{what}: {number} of {total} steps")

    yield done


def note_on_stderr(line: str) -> None:
    """A line on standard error."""
    print(line, file=sys.stderr, flush=True)
