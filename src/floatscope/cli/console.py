"""Where the command line writes: results to standard output, everything else to standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from typing import Any

from rich.console import Console

from floatscope.cli import plain

output = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Answer Ctrl-C with `message` and exit status 130."""
    try:
        yield
    except KeyboardInterrupt:
        errors.print(message)
        raise SystemExit(130) from None


def print_json(record: Any) -> None:
    """Print a dataclass or plain values as JSON; non-finite numbers are strings, as in records."""
    from floatscope.lab.run.json_files import json_values

    if is_dataclass(record) and not isinstance(record, type):
        record = asdict(record)
    plain.print_json(json_values(record))
