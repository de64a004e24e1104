"""SVG by hand where that is smaller, and Vega's SVG made smaller.

One picture serves both languages and both themes: inside are numbers, units and symbols, colors are
`currentColor` or variables of the page's style.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from markupsafe import Markup

_TAG = re.compile(r"<[^>]+>")
"""Coordinates are in tags; the numbers between them are labels."""
_NUMBER = re.compile(r"-?\d+\.\d{2,}(?:e-?\d+)?")
_ATTRIBUTES = re.compile(
    r' (?:class|role|aria-[a-z]+|pointer-events|version|xmlns:xlink|stroke-miterlimit)="[^"]*"'
)
_EMPTY_PATH = re.compile(r'<path(?: fill="[^"]*")? d="M0,0h[-\d.]+v[-\d.]+h[-\d.]+Z"'
                         r'(?: stroke="none")?/>'
                         r'|<path d="" display="none"/>')  # fmt: skip
_EMPTY_GROUP = re.compile(r"<g(?: transform=\"translate\(0,0\)\")?></g>|<g/>")
_POINT = re.compile(r'<path transform="translate\(([-\d.]+),([-\d.]+)\)" '
                    r'd="M([\d.]+),0A\3,\3,0,1,1,-\3,0A\3,\3,0,1,1,\3,0"')  # fmt: skip
_LINES = re.compile(r' d="((?:[ML]-?[\d.]+,-?[\d.]+)+)"')
_VERTEX = re.compile(r"([ML])(-?[\d.]+),(-?[\d.]+)")
_FONT = 'font-family="system-ui, sans-serif"'
_SIZE = re.compile(r'<svg xmlns="[^"]*" width="([\d.]+)" height="([\d.]+)" viewBox="([^"]*)">')


def compact(svg: str) -> Markup:
    """Vega's SVG without what a picture does not need: a third of its size."""
    svg = _ATTRIBUTES.sub("", svg).replace(' opacity="1"', "").replace(f" {_FONT}", "")
    svg = _TAG.sub(lambda tag: _NUMBER.sub(_rounded, tag[0]), svg)
    svg = _LINES.sub(lambda lines: f' d="{_relative(lines[1])}"', svg)
    svg = _POINT.sub(r'<circle cx="\1" cy="\2" r="\3"', svg)
    svg = _EMPTY_PATH.sub("", svg)
    before = ""
    while svg != before:
        before, svg = svg, _EMPTY_GROUP.sub("", svg)
    root = rf'<svg viewBox="\3" {_FONT} aria-hidden="true" style="max-width:\1px">'
    svg = _SIZE.sub(root, svg)
    return Markup(svg)


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def _relative(path: str) -> str:
    """A path of straight lines by steps from vertex to vertex, in tenths: exact, and shorter."""
    written: list[str] = []
    x = y = 0
    for command, *place in _VERTEX.findall(path):
        to_x, to_y = (round(10 * float(value)) for value in place)
        written.append(f"M{_tenths(to_x)},{_tenths(to_y)}" if command == "M" else
                       f"l{_tenths(to_x - x)},{_tenths(to_y - y)}")  # fmt: skip
        x, y = to_x, to_y
    return "".join(written).replace(",-", "-")


def _tenths(count: int) -> str:
    sign, (whole, rest) = "-" * (count < 0), divmod(abs(count), 10)
    text = f"{whole}.{rest}" if rest else str(whole)
    return sign + (text.removeprefix("0") if rest else text)


def short(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def cells(places: Iterable[tuple[int, int]]) -> str:
    """The path of unit squares at columns and rows."""
    return "".join(f"M{column} {row}h1v1h-1z" for column, row in places)


def heat(rows: Sequence[Sequence[int | None]]) -> Markup:
    """A heat map, one path a color step.

    Args:
        rows: of steps 0, 1, 2, …, from top to bottom; None where there is no number.
    """
    steps: dict[int, list[tuple[int, int]]] = {}
    for y, row in enumerate(rows):
        for x, step in enumerate(row):
            if step is not None:
                steps.setdefault(step, []).append((x, y))
    paths = "".join(
        f'<path fill="var(--heat-{step})" d="{cells(places)}"/>'
        for step, places in sorted(steps.items())
    )
    width = max((len(row) for row in rows), default=0)
    return Markup(
        f'<svg viewBox="0 0 {width} {len(rows)}" preserveAspectRatio="none" aria-hidden="true" '
        f'class="heat" shape-rendering="crispEdges">{paths}</svg>'
    )
