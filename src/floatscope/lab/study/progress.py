"""How far a study is: live bars on a terminal, a line a finished run elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from floatscope.lab.run.plan import RunPlan

SECONDS_OF_SILENCE = 30.0


class Display:
    """Shows the progress of one study on `console`, or nothing if it is None."""

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._live = console is not None and console.is_terminal
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._live,
        )
        self._study: TaskID | None = None
        self._tasks: dict[str, TaskID] = {}
        self._done = self._total = 0
        self._started = self._spoke = time.monotonic()

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextmanager
    def task(self, what: str) -> Iterator[None]:
        """Something without a measure of its own."""
        task = self._bars.add_task(what, total=None, count="")
        yield
        self._bars.remove_task(task)

    def note(self, line: str) -> None:
        """A line that stays."""
        if self._console is not None:
            self._bars.console.print(line, highlight=False)

    def begin(self, *, total: int, finished: int, jobs: int) -> None:
        """The study has `total` runs, `finished` of them already, and starts `jobs` at a time."""
        self._done, self._total = finished, total
        already = f", {finished} of them finished already" if finished else ""
        self.note(f"{total} run{'s' if total > 1 else ''}{already}; {jobs} at a time")
        self._study = self._bars.add_task(
            "study", total=total, completed=finished, count=self._runs()
        )

    def progress(self, run: RunPlan, steps: int) -> None:
        """`run` has done `steps` steps."""
        if run.label not in self._tasks:
            self._tasks[run.label] = self._bars.add_task(run.label, total=run.train.steps, count="")
        count = f"{steps} of {run.train.steps} steps"
        self._bars.update(self._tasks[run.label], completed=steps, count=count)
        if self._study is not None:
            parts = sum(
                (t.completed or 0) / (t.total or 1)
                for t in self._bars.tasks
                if t.id in self._tasks.values()
            )
            self._bars.update(self._study, completed=self._done + parts, count=self._runs())

        if not self._live and time.monotonic() - self._spoke > SECONDS_OF_SILENCE:
            self._spoke = time.monotonic()
            under_way = [f"{t.description} {t.fields['count']}" for t in self._bars.tasks]
            self.note("; ".join(under_way))

    def _runs(self) -> str:
        return f"{self._done} of {self._total} runs"

    def finished(self, run: RunPlan) -> None:
        """`run` has ended."""
        self._done += 1
        if run.label in self._tasks:
            self._bars.remove_task(self._tasks.pop(run.label))
        minutes = (time.monotonic() - self._started) / 60
        if not self._live:
            self._spoke = time.monotonic()
            self.note(f"[{self._done}/{self._total}] {run.label} ended after {minutes:.1f} min")
