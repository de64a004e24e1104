"""Curves over steps as Vega-Lite specifications and, from the same, as SVG.

Vega-Lite is written down as it is, as plain dictionaries: the page hands them to the runtime in the
browser, with the curves as columns (`series`) that become rows there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from floatscope.report.figure import Key
from floatscope.report.svg import compact
from floatscope.report.thin import stretches, thinned

VEGA_LITE = "v6.1"
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
WIDTH, HEIGHT = 480, 260
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2")
CONFIG: dict[str, Any] = {
    "aria": False,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "title": None, "labelColor": "currentColor", "labelFontSize": 12,
        "gridColor": "var(--grid)",
        "domain": False, "ticks": False, "labelPadding": 6, "labelFlush": False,
    },
    "line": {"strokeWidth": 1.4, "strokeJoin": "round"},
    "legend": {"disable": True},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a chart."""

    label: str
    arm: str
    """The recipe, which decides color and dash."""
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves and what stands behind and on them."""

    arms: Sequence[str]
    """All recipes of the study, in its order: each has one color in all figures."""
    curves: Sequence[Curve]
    band: Sequence[tuple[float, float, float]] = ()
    """Step, lower and upper edge."""
    marks: Sequence[tuple[float, float, str, str]] = ()
    """x, y, shape and arm of single events."""
    zero: bool = False
    """A line at zero."""
    dashed: bool = True
    points: bool = False
    interpolate: str = "linear"
    y_scale: Mapping[str, Any] = field(default_factory=lambda: {"zero": False})
    y_axis: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_points(self) -> tuple[int, int]:
        """Points shown, and points there are."""
        there = sum(len(curve.x) for curve in self.curves)
        return sum(len(curve.x) for curve in _thin(self.curves)), there


def color_of(arm: str, arms: Sequence[str]) -> str:
    """The color of an arm: a variable of the page's style."""
    return f"var(--arm-{arms.index(arm) % 8})"


def keys(arms: Sequence[str], shown: Sequence[str], *, dashed: bool = True) -> tuple[Key, ...]:
    """The legend of the arms that a chart shows."""
    return tuple(
        Key(
            label=arm,
            color=color_of(arm, arms),
            dash=DASHES[index % len(DASHES)] if dashed else "",
        )
        for index, arm in enumerate(arms)
        if arm in shown
    )


def drawn(chart: Chart) -> tuple[Markup, dict[str, Any]]:
    """The chart as SVG, and as the live specification."""
    import vl_convert

    curves = _thin(chart.curves)
    spec = _spec(chart)
    rows = [
        {"x": x, "y": y, "label": curve.label, "arm": curve.arm}
        for curve in curves
        for x, y in zip(curve.x, map(_finite, curve.y), strict=True)
    ]
    svg = vl_convert.vegalite_to_svg(
        {**spec, "datasets": {**spec["datasets"], "curves": rows}}, vl_version=VEGA_LITE
    )
    live = {**spec, "layer": [*spec["layer"], *_hover()], "series": _columns(curves)}
    return compact(svg), live


def _thin(curves: Sequence[Curve]) -> list[Curve]:
    num = stretches(len(curves))
    thin = []
    for curve in curves:
        kept = thinned(curve.y, num)
        x, y = ([values[i] for i in kept] for values in (curve.x, curve.y))
        thin.append(Curve(label=curve.label, arm=curve.arm, x=x, y=y))
    return thin


def _spec(chart: Chart) -> dict[str, Any]:
    arms = list(chart.arms)
    color = {
        "field": "arm", "type": "nominal", "legend": None,
        "scale": {"domain": arms, "range": [color_of(arm, arms) for arm in arms]},
    }  # fmt: skip
    dashes = [[*map(int, DASHES[i % len(DASHES)].split())] or [1, 0] for i in range(len(arms))]
    dash = {"field": "arm", "type": "nominal", "legend": None,
            "scale": {"domain": arms, "range": dashes}}  # fmt: skip
    y = {"field": "y", "type": "quantitative", "scale": dict(chart.y_scale),
         "axis": {"tickCount": 5, **chart.y_axis}}  # fmt: skip
    x = {"field": "x", "type": "quantitative", "scale": {"nice": False, "zero": False},
         "axis": {"grid": False, "tickCount": 6}}  # fmt: skip
    line = {
        "data": {"name": "curves"},
        "mark": {"type": "line", "interpolate": chart.interpolate, "clip": True,
                 "point": {"size": 22, "filled": True} if chart.points else False,
                 "strokeWidth": 1.8 if chart.points else 1.2},
        "encoding": {"x": x, "y": y, "color": color, "detail": {"field": "label"},
                     **({"strokeDash": dash} if chart.dashed else {})},
    }  # fmt: skip
    return {
        "$schema": SCHEMA,
        "width": WIDTH,
        "height": HEIGHT,
        "background": None,
        "padding": 2,
        "config": CONFIG,
        "datasets": {
            "band": [{"x": x, "low": low, "high": high} for x, low, high in chart.band],
            "marks": [{"x": x, "y": y, "shape": shape, "arm": arm}
                      for x, y, shape, arm in chart.marks],
        },
        "layer": [*_behind(chart, x, y), line, *_marks(chart, color)],
    }  # fmt: skip


def _behind(chart: Chart, x: dict[str, Any], y: dict[str, Any]) -> list[dict[str, Any]]:
    layers: list[dict[str, Any]] = []
    if chart.band:
        layers.append({
            "data": {"name": "band"},
            "mark": {"type": "area", "color": "var(--band)", "opacity": 1},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        })  # fmt: skip
    if chart.zero:
        layers.append({
            "data": {"values": [{}]},
            "mark": {"type": "rule", "color": "var(--axis)", "strokeWidth": 1},
            "encoding": {"y": {"datum": 0}},
        })  # fmt: skip
    return layers


def _marks(chart: Chart, color: dict[str, Any]) -> list[dict[str, Any]]:
    if not chart.marks:
        return []
    shape = {"field": "shape", "type": "nominal", "scale": None, "legend": None}
    return [{
        "data": {"name": "marks"},
        "mark": {"type": "point", "size": 70, "strokeWidth": 1.8, "opacity": 1},
        "encoding": {
            "x": _quantity("x"), "y": _quantity("y"),
            "shape": shape, "color": color,
        },
    }]  # fmt: skip


def _hover() -> list[dict[str, Any]]:
    """The point nearest to the pointer, named."""
    shown = {"condition": {"param": "near", "empty": False, "value": 1}, "value": 0}
    return [{
        "data": {"name": "curves"},
        "params": [{"name": "near", "select": {
            "type": "point", "on": "pointermove", "nearest": True, "clear": "pointerout"}}],
        "transform": [{"filter": "isValid(datum.y)"}],
        "mark": {"type": "point", "filled": True, "size": 60, "color": "currentColor"},
        "encoding": {
            "x": _quantity("x"), "y": _quantity("y"),
            "opacity": shown,
            "tooltip": [{"field": "label", "title": "run"}, {"field": "x", "title": "step"},
                        {"field": "y", "title": "value", "format": ".6~g"}],
        },
    }]  # fmt: skip


def _quantity(field: str) -> dict[str, Any]:
    return {"field": field, "type": "quantitative"}


def _columns(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    """Curves as columns; one whose steps are those of the curve before it does not repeat them."""
    columns: list[dict[str, Any]] = []
    before: Sequence[float] = ()
    for curve in curves:
        column: dict[str, Any] = {"label": curve.label, "arm": curve.arm}
        if list(curve.x) != list(before):
            column["x"] = before = list(curve.x)
        columns.append({**column, "y": [_rounded(y) for y in curve.y]})
    return columns


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rounded(value: float) -> float | None:
    """Five significant digits, more than a screen shows."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
