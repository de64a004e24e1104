"""A probe for the terminal: picture, tables, answers."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floatscope.cli.number_line import number_line
from floatscope.lab.probe.answers import (
    SCALED,
    answers,
    block_totals,
    largest_differences,
    percent,
    scale_text,
    totals,
)
from floatscope.lab.probe.records import Backward, Probe, StateProbe

RANGES = (("fp16", 0), ("fp16", SCALED), ("bf16", 0), ("e4m3fn", SCALED), ("e5m2", SCALED))
SHOWN_SCALES = (0, 8, 16, 24)
NAME_WIDTH = 32


def probe_table(probe: Probe) -> Group:
    """Everything that is shown of a probe."""
    parts: list[RenderableType] = []
    for state in probe.states:
        parts += _state(probe.label, state)
    return Group(*parts)


def _state(label: str, state: StateProbe) -> Iterator[RenderableType]:
    total = state.total
    yield Text(f"{label}, {state.name}: loss {state.loss:.4f}", style="bold")
    yield Text(
        f"{grouped(total.num_elements)} gradient elements in fp32, {grouped(total.zeros)} of them "
        "zero; the others by octave:"
    )
    yield from number_line(total, RANGES)
    yield Text("\nStored in 16 or 8 bits; shares of the elements that are not zero in fp32:")
    yield _formats(state)
    yield Text("Stored in formats that scale themselves, measured:")
    yield _blocks(state)
    yield from _layers(state)
    for text in answers(state):
        yield Text(f"• {text}")
    if state.without_gradient:
        names = ", ".join(state.without_gradient[:3])
        more = "" if len(state.without_gradient) <= 3 else " and others"
        yield Text(f"• Without a gradient: {names}{more}.")
    yield Text("")


def _table(first: str, *headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True, vertical="bottom")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True, vertical="bottom")
    return table


def grouped(number: int) -> str:
    """A count with thin groups of three digits."""
    return f"{number:,}".replace(",", " ")


def _formats(state: StateProbe) -> Table:
    table = _table(
        "format  scale", "zero\non paper", "subnormal\non paper", "overflow\non paper",
        "zero\nreally", "inf, NaN\nreally", "median\nerror",
    )  # fmt: skip
    real = {(t.format, t.exponent): t for t in totals(state.backward)}
    ran_at = {exponent for _, exponent in real}
    shown = ran_at or SHOWN_SCALES
    for row in state.predictions:
        if row.exponent not in shown:
            continue
        ran = real.get((row.format, row.exponent))
        table.add_row(
            f"{row.format:7} {scale_text(row.exponent)}",
            *(percent(n / row.of) for n in (row.underflow, row.subnormal, row.overflow)),
            percent(ran.zeros / ran.of) if ran else "–",
            percent((ran.infinities + ran.nans) / ran.of) if ran else "–",
            percent(ran.median_error) if ran else "–",
        )
    return table


def _blocks(state: StateProbe) -> Table:
    table = _table(
        "format", "zero", "saturated", "error of\nthe whole",
    )  # fmt: skip
    for row in block_totals(state):
        table.add_row(
            row.format,
            percent(row.underflow / row.of),
            percent(row.saturated / row.of),
            percent(row.error),
        )
    return table


def _layers(state: StateProbe) -> Iterator[RenderableType]:
    for rows, what in (
        (state.backward, "weight gradients"),
        (state.on_the_way, "gradients of module outputs"),
    ):
        worst = largest_differences(rows, "fp16", 0)
        if worst:
            yield Text(f"Where paper and reality differ most, fp16 unscaled, {what}:")
            yield _differences(worst)


def _differences(rows: list[Backward]) -> Table:
    has_errors = any(row.error == row.error for row in rows)
    errors = ["error of\nthe whole"] if has_errors else []
    table = _table("where", "zero\non paper", "zero\nreally", *errors)
    for row in rows:
        name = row.name or "(the model)"
        name = name if len(name) <= NAME_WIDTH else "…" + name[1 - NAME_WIDTH :]
        cells = [percent(row.predicted / row.of), percent(row.zeros / row.of)]
        table.add_row(name, *cells, *([percent(row.error)] if has_errors else []))
    return table
