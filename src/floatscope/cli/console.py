"""Where the command line writes: results to standard output, everything else to standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
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
    """Print a dataclass as JSON; non-finite numbers become the strings that the records use."""
    plain.print_json(_plain(asdict(record)))


def _plain(value: Any) -> Any:
    from floatscope.lab.run.journal import json_value

    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return json_value(value)
