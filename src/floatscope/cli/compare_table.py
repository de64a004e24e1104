"""A comparison for the terminal: one table of recipes, one of where they are off most, words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floatscope.cli.probe_table import grouped
from floatscope.lab.compare.records import Arm, Comparison, Difference, StateComparison
from floatscope.lab.probe.answers import percent

WIDTH = 80
RECIPE_WIDTH, LAYER_WIDTH = 19, 27


def compare_table(comparison: Comparison, layers: int | None = 1) -> Group:
    """Everything that is shown of a comparison.

    Args:
        comparison: what was found.
        layers: so many parameters of each recipe, the worst first; None for all.
    """
    parts: list[RenderableType] = []
    for state in comparison.states:
        parts += _state(comparison.label, state, layers)
    return Group(*parts)


def _state(label: str, state: StateComparison, layers: int | None) -> Iterator[RenderableType]:
    whole = state.arms[0].whole
    zero = whole.elements - whole.nonzero
    yield Text(f"{label}, {state.name}: loss {state.loss:.4f}", style="bold")
    yield Text(f"{grouped(whole.elements)} gradient elements, {grouped(zero)} of them zero in fp64")
    yield _recipes(state)
    if layers != 0 and state.arms[1:]:
        yield Text("By parameter:" if layers is None else "Where each is off most:")
        yield _layers(state, layers)
    for text in state.answers:
        together = text.replace(" %", "\N{NO-BREAK SPACE}%")
        yield Text(textwrap.fill(f"• {together}", WIDTH, subsequent_indent="  "))
    yield Text("")


def _table(*first: str, headers: tuple[str, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for header in first:
        table.add_column(header, no_wrap=True, vertical="bottom")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True, vertical="bottom")
    return table


def _recipes(state: StateComparison) -> Table:
    table = _table(
        "recipe",
        headers=("1 −\ncosine", "error of\nthe whole", "sign\nflips", "new\nzeros", "not\nfinite"),
    )
    for arm in state.arms:
        table.add_row(_cut(arm.recipe, RECIPE_WIDTH), *_cells(arm))
    return table


def _cells(arm: Arm) -> list[str]:
    whole = arm.whole
    return [
        _angle(whole),
        percent(whole.error),
        percent(whole.sign_flips / whole.nonzero),
        percent(whole.zeros / whole.nonzero),
        percent(whole.nonfinite / whole.elements),
    ]


def _layers(state: StateComparison, layers: int | None) -> Table:
    table = _table("recipe", "parameter", headers=("error", "sign\nflips", "new\nzeros"))
    for arm in state.arms if layers is None else state.arms[1:]:
        name = _cut(arm.recipe, RECIPE_WIDTH)
        for row in arm.layers if layers is None else state.worst(arm, layers):
            shares = (row.sign_flips, row.zeros)
            table.add_row(
                name,
                _cut(row.name, LAYER_WIDTH),
                percent(row.error),
                *(percent(n / row.nonzero) if row.nonzero else "–" for n in shares),
            )
            name = ""
    return table


def _angle(row: Difference) -> str:
    return f"{max(0.0, 1 - row.cosine):.1e}" if row.cosine == row.cosine else "NaN"


def _cut(name: str, width: int) -> str:
    """A name that fits: its end, which says most."""
    return name if len(name) <= width else "…" + name[1 - width :]
