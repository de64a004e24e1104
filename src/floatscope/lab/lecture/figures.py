"""The demonstrations' figures, from their records, as Vega-Lite specifications.

Inside are numbers, units, symbols and names of formats only, so that one picture serves both
languages; what the axes are is in the captions (`telling`). Colors are `currentColor` and variables
of the report's style; fonts and grids come from whoever draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from floatscope.lab.lecture.records import (
    Formats,
    Gradients,
    MasterWeights,
    Scaling,
    ScalingRun,
    Swallowed,
)

Spec = dict[str, Any]

WIDTH, HEIGHT = 440, 240
PANEL = 200
"""Width of one of two panels."""
NAMED_FROM = 5
"""Percent of lost updates from which on a line has its name at its end; below, lines overlap."""
COLORS = {
    "fp32": "var(--arm-0)", "fp16": "var(--arm-3)", "bf16": "var(--arm-1)",
    "bf16+fp32": "var(--arm-2)", "bf16+SR": "var(--arm-4)", "bf16+Kahan": "var(--arm-5)",
    "v bf16": "var(--arm-6)", "v bf16 0.999": "var(--arm-7)",
}  # fmt: skip
ARMS = {
    "bf16": "bf16", "fp16": "fp16", "bf16+master": "bf16+fp32",
    "bf16+sr": "bf16+SR", "bf16+kahan": "bf16+Kahan", "v-bf16": "v bf16",
}  # fmt: skip


def figure(number: int, record: Any) -> Spec:
    """The specification of a demonstration's figure."""
    drawn: dict[int, Callable[[Any], Spec]] = {
        1: formats, 2: swallowed, 3: gradients, 4: scaling, 5: master_weights,
    }  # fmt: skip
    return drawn[number](record)


def formats(record: Formats) -> Spec:
    """Ranges on the log2 axis."""
    names = [row.name for row in record.rows]
    parts = [
        {"name": row.name, "from": start, "to": stop, "opacity": opacity}
        for row in record.rows
        for start, stop, opacity in (
            (row.min_octave, row.emin, 0.3), (row.emin, row.emax + 1, 0.85))
    ]  # fmt: skip
    ends = [
        {"name": row.name, "at": at, "text": text, "align": align}
        for row in record.rows
        for at, text, align in (
            (row.min_octave, f"2^{row.min_octave}", "right"), (row.emax + 1, row.max, "left"))
    ]  # fmt: skip
    y = _names("name", names)
    x = _number(
        "from", axis={"grid": False, "tickCount": 8}, scale={"domain": [-200, 190], "nice": False}
    )
    bars = {
        "data": {"values": parts},
        "mark": {"type": "bar", "height": 18, "color": "currentColor"},
        "encoding": {"y": y, "x": x, "x2": {"field": "to"}, "opacity": _as_it_is("opacity")},
    }
    labels = [
        {
            "data": {"values": [end for end in ends if end["align"] == align]},
            "mark": _text(align=align, dx=dx),
            "encoding": {"y": y, "x": _number("at"), "text": {"field": "text"}},
        }
        for align, dx in (("right", -4), ("left", 4))
    ]
    return {"width": WIDTH, "height": 36 * len(names), "layer": [bars, *labels]}


def swallowed(record: Swallowed) -> Spec:
    """Running sums."""
    rows = [
        {"format": s.format, "n": n, "sum": value}
        for s in record.sums
        for n, value in (*s.trace, (record.additions, s.result))
    ]
    ends = [
        {"format": s.format, "n": record.additions, "sum": s.result,
         "text": f"{s.format} {s.result:.5g}"}
        for s in record.sums
    ]  # fmt: skip
    color = _colors([s.format for s in record.sums], "format")
    x, y = _number("n", axis={"grid": False, "tickCount": 5}), _number("sum")
    line = {
        "data": {"values": rows},
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": {"x": x, "y": y, "color": color},
    }
    labels = {
        "data": {"values": ends},
        "mark": _text(align="right", dy=-9, dx=-2),
        "encoding": {"x": x, "y": y, "color": color, "text": {"field": "text"}},
    }
    return {"width": WIDTH, "height": HEIGHT, "layer": [line, labels]}


def gradients(record: Gradients) -> Spec:
    """Errors on the left, overflow on the right."""
    sizes = [str(batch.batch_size) for batch in record.batches]
    errors, overflow = [], []
    for batch in record.batches:
        for row in batch.scales:
            where = {"k": row.exponent, "batch": str(batch.batch_size)}
            if math.isfinite(row.median_error):
                errors.append({**where, "error": 100 * row.median_error})
            real = 100 * (row.infinite.share + row.nan.share)
            predicted = 100 * row.predicted_infinite.share
            overflow.append({**where, "real": real, "predicted": predicted})
    color = {**_scale("batch", sizes, ["var(--arm-1)", "var(--arm-3)"]), "legend": None}
    k = _number("k", axis={"grid": False, "values": sorted({row["k"] for row in overflow})})
    decades = {"values": _DECADES, "labelExpr": "datum.value + ' %'"}
    found = [row["error"] for row in errors] or [1.0]
    span = {"type": "log", "domain": [min(found) / 1.6, max(found) * 1.6], "nice": False}
    left = _lines(errors, k, _number("error", scale=span, axis=decades), color)
    firsts = [e for e in errors if e["k"] == record.batches[0].scales[0].exponent]
    left["layer"].append({
        "data": {"values": firsts},
        "mark": _text(align="left", dx=8, dy=-4),
        "encoding": {"x": k, "y": _number("error"), "color": color, "text": {"field": "batch"}},
    })  # fmt: skip
    right = _lines(overflow, k, _number("real", axis=_PERCENT), color)
    right["layer"].append({
        "data": {"values": overflow},
        "mark": {"type": "point", "size": 110, "strokeWidth": 1.5},
        "encoding": {"x": k, "y": _number("predicted", axis=_PERCENT), "color": color},
    })  # fmt: skip
    return {"hconcat": [left, right], "spacing": 24}


def scaling(record: Scaling) -> Spec:
    """Both runs' scales, with crosses at skipped steps."""
    runs = {"a": record.ordinary, "b": record.overflowing}
    rows = [
        {"run": name, "step": number, "k": step.exponent, "skipped": step.skipped}
        for name, run in runs.items()
        for number, step in enumerate(run.steps)
    ]
    ends = [_end(name, run) for name, run in runs.items()]
    color = {**_scale("run", [*runs], ["var(--arm-1)", "var(--arm-3)"]), "legend": None}
    x = _number("step", axis={"grid": False, "tickCount": 8})
    y = _number("k", axis={"labelExpr": "'2^' + datum.value", "tickCount": 6})
    encoding = {"x": x, "y": y, "color": color}
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "layer": [
            {
                "data": {"values": [*rows, *ends]},
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.5},
                "encoding": encoding,
            },
            {
                "data": {"values": [row for row in rows if row["skipped"]]},
                "mark": {"type": "point", "shape": _CROSS, "size": 60, "strokeWidth": 1.6},
                "encoding": encoding,
            },
            {
                "data": {"values": ends},
                "mark": _text(align="left", dx=4, dy=-6),
                "encoding": {**encoding, "text": {"field": "text"}},
            },
        ],
    }


_CROSS = "M-0.6,-0.6L0.6,0.6M-0.6,0.6L0.6,-0.6"
_PERCENT = {"tickCount": 5, "labelExpr": "datum.label + ' %'"}
_DECADES = [m * 10.0**e for e in range(-4, 3) for m in (1, 2, 5)]


def _end(name: str, run: ScalingRun) -> Spec:
    exponent = run.final_exponent
    return {"run": name, "step": len(run.steps), "k": exponent, "text": f"2^{exponent}"}


def master_weights(record: MasterWeights) -> Spec:
    """Differences by seed on the left, lost updates on the right."""
    dots, lost = [], []
    for training in record.trainings:
        slow = training.beta2 != 0.95
        if training.arm not in ARMS:
            continue
        arm = ARMS[training.arm] + (" 0.999" if slow else "")
        difference = record.paired(training.arm, training.beta2)[training.seed]
        dots.append({"arm": arm, "bits": difference})
        if not slow and training.moments == ():
            lost += [{"arm": arm, "step": at.step, "lost": at.lost.share} for at in training.lost]
    names = list(dict.fromkeys(dot["arm"] for dot in dots))
    color = _colors(names, "arm")
    y = _names("arm", names)
    left = {
        "width": PANEL,
        "height": HEIGHT,
        "layer": [
            {
                "data": {"values": [{"zero": 0}]},
                "mark": {"type": "rule", "color": "var(--axis)"},
                "encoding": {"x": _number("zero")},
            },
            {
                "data": {"values": dots},
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.8},
                "encoding": {"x": _number("bits", axis={"tickCount": 5}), "y": y, "color": color},
            },
        ],
    }
    mean_lost = _lines(
        _means(lost), _number("step", axis={"grid": False, "tickCount": 6}),
        _number("share", axis=_PERCENT), color,
    )  # fmt: skip
    last = max((row["step"] for row in lost), default=0)
    named = [r for r in _means(lost) if r["step"] == last and r["share"] >= NAMED_FROM]
    mean_lost["layer"].append({
        "data": {"values": named},
        "mark": _text(align="left", dx=8),
        "encoding": {"x": _number("step"), "y": _number("share", axis=_PERCENT), "color": color,
                     "text": {"field": "arm"}},
    })  # fmt: skip
    return {"hconcat": [left, mean_lost], "spacing": 24}


def _means(lost: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean over the seeds, in percent."""
    groups: dict[tuple[str, int], list[float]] = {}
    for row in lost:
        groups.setdefault((row["arm"], row["step"]), []).append(row["lost"])
    return [
        {"arm": arm, "step": step, "share": 100 * sum(values) / len(values)}
        for (arm, step), values in groups.items()
    ]


def _number(field: str, axis: Spec | None = None, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", "axis": {"title": None, **(axis or {})}, **more}


def _names(field: str, names: Sequence[str]) -> Spec:
    axis = {"title": None, "grid": False}
    return {"field": field, "type": "nominal", "sort": list(names), "axis": axis}


def _as_it_is(field: str) -> Spec:
    return {"field": field, "type": "quantitative", "scale": None, "legend": None}


def _text(**more: Any) -> Spec:
    return {"type": "text", "fontSize": 12, "color": "currentColor", **more}


def _scale(field: str, domain: Sequence[str], colors: Sequence[str]) -> Spec:
    scale = {"domain": list(domain), "range": list(colors)}
    return {"field": field, "type": "nominal", "scale": scale}


def _colors(names: Sequence[str], field: str) -> Spec:
    return {**_scale(field, names, [COLORS[name] for name in names]), "legend": None}


def _lines(rows: Sequence[dict[str, Any]], x: Spec, y: Spec, color: Spec) -> Spec:
    """One panel of lines with points."""
    line = {
        "data": {"values": list(rows)},
        "mark": {"type": "line", "strokeWidth": 1.6, "point": {"filled": True, "size": 36}},
        "encoding": {"x": x, "y": y, "color": color},
    }
    return {"width": PANEL, "height": HEIGHT, "layer": [line]}
