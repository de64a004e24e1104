"""Does a run that is repeated with nothing changed end the same? On a CPU it should, to the bit."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from floatscope.lab.run.records import WALL_CLOCK, FinishedRun
from floatscope.lab.study.folder import StudyFolder

TABLES = ("metrics", "evaluations")


@dataclass(frozen=True, kw_only=True)
class Determinism:
    """Several runs of one plan and seed."""

    label: str
    """Of the run that was repeated."""
    num_runs: int
    """The run and its repetitions."""
    equal: bool
    """Whether every recorded number but times is the same to the last bit."""
    parted_at: int | None
    """The first step of which they recorded something else; None if none, or they differ in
    length."""
    losses: tuple[float, ...]
    """At the end."""
    standard_deviation: float
    """Of these: what nondeterminism alone does."""
    num_processors: int

    @property
    def sentence(self) -> str:
        what = f"determinism: {self.num_runs} runs of {self.label} with nothing changed"
        where = "" if self.num_processors == 1 else f", on {self.num_processors} processors,"
        if self.equal:
            return f"{what}{where} are equal to the last bit."
        at = "" if self.parted_at is None else f" part at step {self.parted_at} and"
        return (
            f"{what}{where}{at} end with a standard deviation of {self.standard_deviation:.2g} "
            f"(n = {self.num_runs}): a noise floor of its own."
        )


def determinism(folder: StudyFolder) -> Determinism | None:
    """Compare the repetitions of a study; None if there are none yet.

    Raises:
        StudyError: a record is damaged.
    """
    every = list(folder.finished(repeats=True))
    repeated = {plan.seed for plan, _ in every if plan.repeat}
    same = [
        (plan, run)
        for plan, run in every
        if plan.seed in repeated and not plan.ulp_rerun and plan.recipe == every[0][0].recipe
    ]
    if len(same) < 2:
        return None
    tables = [_numbers(run) for _, run in same]
    losses = tuple(run.table("evaluations")["loss"][-1] for _, run in same)
    processors = {s.environment.processor for _, run in same for s in run.manifest.sessions}
    return Determinism(
        label=same[0][0].label,
        num_runs=len(same),
        equal=all(table == tables[0] for table in tables),
        parted_at=_parted_at(tables),
        losses=losses,
        standard_deviation=statistics.stdev(losses),
        num_processors=len(processors),
    )


def _numbers(run: FinishedRun) -> list[str]:
    """A line a step or evaluation, in which NaNs are equal and -0 is not 0."""
    lines = []
    for name in TABLES:
        table = run.table(name)
        columns = [column for column in table if column not in WALL_CLOCK]
        rows = zip(*(table[column] for column in columns), strict=True)
        lines += [f"{name} {row!r}" for row in rows]
    return lines


def _parted_at(tables: list[list[str]]) -> int | None:
    steps = [[line for line in table if line.startswith(TABLES[0])] for table in tables]
    for step, lines in enumerate(zip(*steps, strict=False)):
        if len(set(lines)) > 1:
            return step
    return None
