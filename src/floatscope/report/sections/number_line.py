"""The number line: where gradients lie, and what each format would do to them at any loss scale."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from markupsafe import Markup

from floatscope.lab.probe.answers import SCALED, SMALLEST
from floatscope.lab.probe.formats import BLOCK_FORMATS
from floatscope.report.counts import FORMATS, counts_data, format_data
from floatscope.report.evidence import Evidence
from floatscope.report.probes import ProbedState, ProbeRecord
from floatscope.report.section import Answer, Section
from floatscope.report.svg import short
from floatscope.report.words import Say, grouped, percent, power
from floatscope.spectrum.predict import float_format
from floatscope.spectrum.spectrum import Spectrum

LEFT, RIGHT = -56, 32
"""Octaves that are drawn."""
LEAST, MOST = -8, 32
"""Exponents of the scales that the slider has."""
SHOWN = (0, 8, 16, 24)
STATES = {
    "initialization": Say("initialization", "初始化"),
    "end of training": Say("end of training", "训练结束"),
}


def section(evidence: Evidence) -> Section:
    """The section; pending without a probe."""
    title = Say("Underflow probe: real gradients on the number line", "下溢探针：真实梯度在数轴上")
    problem, probe = evidence.damaged.get("probe", ""), evidence.main_probe
    if probe is None:
        command = f"floatscope probe {evidence.place}"
        return Section(name="numberline", title=title, command=command, problem=problem)
    return Section(
        name="numberline",
        title=title,
        problem=problem,
        answers=tuple(_answers(probe)),
        values={
            "data": line_data(probe),
            "bars": bars(probe.states[-1].total),
            "zones": {name: zones(name) for name in FORMATS},
            "ticks": range(LEFT + 8 - LEFT % 8, RIGHT, 8),
            "left": LEFT, "right": RIGHT, "least": LEAST, "most": MOST,
            "formats": FORMATS, "blocks": BLOCK_FORMATS,
            "states": [state_words(state) for state in probe.states],
            "label": probe.label,
            "elements": grouped(probe.states[-1].summary.elements),
            "table": [row for state in probe.states for row in _table(state)],
        },
    )  # fmt: skip


def state_words(state: ProbedState) -> Say:
    """The name of a state in both languages."""
    return STATES.get(state.name, Say(state.name, state.name))


def line_data(probe: ProbeRecord) -> dict[str, Any]:
    """What the page computes from."""
    return {
        "formats": [format_data(name) for name in FORMATS],
        "least": LEAST, "most": MOST, "left": LEFT, "right": RIGHT,
        "states": [_state_data(state) for state in probe.states],
    }  # fmt: skip


def _state_data(state: ProbedState) -> dict[str, Any]:
    measured: dict[str, list[list[float]]] = {}
    for row in state.measured:
        measured.setdefault(row.name, []).append([row.underflow, row.saturated, row.of, row.error])
    parts = []
    for name, spectrum in state.spectra.items():
        layer, role = place_of(name)
        parts.append({
            "layer": layer, "role": role, **counts_data(spectrum),
            "energy": spectrum.sum_of_squares, "measured": measured.get(name, []),
        })  # fmt: skip
    return {"name": state.name, "parts": parts}


def place_of(parameter: str) -> tuple[str, str]:
    """The layer of a parameter, a number where its name has one, and its role in it."""
    name = parameter.removesuffix(".weight")
    match = re.match(r"(?:.*?\.)?(\d+)\.(.+)", name)
    return (match[1], match[2]) if match else (name, name)


def bars(spectrum: Spectrum) -> Markup:
    """The path of a spectrum's bars, an octave wide, the highest 100 high."""
    held = spectrum.octave_counts()
    top = max(held.values(), default=1)
    return Markup("".join(
        f"M{octave + 0.06:.2f} 100h.88v{short(-max(1.2, 100 * count / top))}h-.88z"
        for octave, count in held.items()
    ))  # fmt: skip


def zones(name: str) -> list[tuple[str, int, int]]:
    """Kinds and ends of a format's ranges on the drawn axis, in octaves."""
    form = float_format(name)
    ends = [LEFT, form.min_octave - 1, form.emin, form.emax + 1, RIGHT]
    ends = [min(max(end, LEFT), RIGHT) for end in ends]
    kinds = ("zero", "subnormal", "normal", "overflow")
    return [(kind, low, high) for kind, low, high in zip(kinds, ends, ends[1:], strict=False)
            if low < high]  # fmt: skip


def _table(state: ProbedState) -> Iterable[tuple[Say, str, str, list[str]]]:
    """A row a format and scale: state, format, scale, and three shares."""
    for name in FORMATS:
        sweep = state.total.sweep(name, SHOWN)
        for place, exponent in enumerate(SHOWN):
            counts = (sweep.underflow, sweep.subnormal, sweep.overflow)
            shares = [percent(int(column[place]) / sweep.of) if sweep.of else "–"
                      for column in counts]  # fmt: skip
            yield state_words(state), name, power(exponent), shares


def _answers(probe: ProbeRecord) -> Iterable[Answer]:
    yield Answer(
        question=Say(
            f"① Which share lies below {power(SMALLEST)} unscaled, and at S = 65 536?",
            f"① 不缩放时落在 {power(SMALLEST)} 以下的比例是多少？S = 65 536 之后呢？",
        ),
        answer=_said(probe, _below),
    )
    yield Answer(
        question=Say(
            "② How many octaves do the non-zero values span: more or fewer than fp16's 40?",
            "② 非零值铺了几个 2 的幂：比 fp16 的 40 个宽还是窄？",
        ),
        answer=_said(probe, _span),
    )


def _said(probe: ProbeRecord, say: Callable[[ProbedState], Say]) -> Say:
    said = [(state_words(state), say(state)) for state in probe.states]
    return Say(
        " ".join(f"{where.en.capitalize()}: {what.en}" for where, what in said),
        "".join(f"{where.zh}：{what.zh}" for where, what in said),
    )


def _below(state: ProbedState) -> Say:
    before, after = state.total.below(SMALLEST), state.total.below(SMALLEST - SCALED)
    zero = state.total.underflow("fp16")
    return Say(
        f"{percent(before.fraction)} unscaled ({percent(zero.fraction)} become zero: those at or "
        f"below 2⁻²⁵), {percent(after.fraction)} at 65 536.",
        f"不缩放 {percent(before.fraction)}（其中不超过 2⁻²⁵、真正变成 0 的占 "
        f"{percent(zero.fraction)}），乘 65 536 之后 {percent(after.fraction)}。",
    )


def _span(state: ProbedState) -> Say:
    octaves = state.total.octaves
    if not octaves:
        return Say("no element is non-zero.", "没有非零元素。")
    held = float_format("fp16").num_octaves
    low, high = state.summary.bulk_octaves
    wide = (("narrower than", "窄于") if len(octaves) < held else ("wider than", "宽于")
            if len(octaves) > held else ("as wide as", "等于"))  # fmt: skip
    return Say(
        f"{len(octaves)} octaves, from {power(octaves[0])} to {power(octaves[-1] + 1)}, {wide[0]} "
        f"fp16's {held}; 99.9 % of them lie within {high - low + 1}.",
        f"{len(octaves)} 个，从 {power(octaves[0])} 到 {power(octaves[-1] + 1)}，{wide[1]} fp16 的 "
        f"{held} 个；其中 99.9 % 落在 {high - low + 1} 个之内。",
    )
