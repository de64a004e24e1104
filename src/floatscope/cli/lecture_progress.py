"""How far a computation is: a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from floatscope.lab.watch import Done, Watch, lines_on_stderr


def watch_on(console: Console) -> Watch:
    """A `Watch` that shows on `console`."""
    if not console.is_terminal:
        return lines_on_stderr

    @contextmanager
    def bar(what: str, total: int) -> Iterator[Done]:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda number: progress.update(task, completed=number)

    return bar
