"""The underflow map: where in the model gradients become zero, layer by step and by loss scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from floatscope.lab.probe.formats import EXPONENTS
from floatscope.report.evidence import Evidence
from floatscope.report.probes import ProbedState, ProbeRecord
from floatscope.report.section import Section
from floatscope.report.sections.number_line import state_words
from floatscope.report.svg import heat
from floatscope.report.words import Say, percent, same
from floatscope.spectrum.spectrum import Spectrum

FORM = "fp16"
LIMITS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5)
"""Shares above which a cell has the next color."""
MOST_COLUMNS = 40


@dataclass(frozen=True, kw_only=True)
class Map:
    """A heat map with its rows and columns."""

    title: Say
    rows: tuple[str, ...]
    columns: tuple[Say, ...]
    every: int
    """Under the picture, only each so many columns have their name."""
    svg: Markup
    cells: tuple[tuple[str, ...], ...]
    """The same as text, for the table."""


def section(evidence: Evidence) -> Section:
    """The section; pending without a probe."""
    title = Say("Underflow map: layer by layer", "下溢地图：逐层看")
    if not evidence.probes and not evidence.captured:
        command = f"floatscope probe {evidence.place}"
        return Section(name="map", title=title, command=command,
                       problem=evidence.damaged.get("capture", ""))  # fmt: skip
    probe = evidence.main_probe
    maps = [_over_steps(evidence)]
    if probe is not None:
        maps += [_over_scales(probe, state) for state in probe.states]
    return Section(
        name="map",
        title=title,
        problem=evidence.damaged.get("capture", ""),
        values={
            "maps": maps,
            "limits": [_limit(step) for step in range(len(LIMITS) + 1)],
            "is_captured": bool(evidence.captured),
            "folder": evidence.folder,
        },
    )


def step_of(share: float) -> int | None:
    """The color step of a share; None where there is none."""
    return None if math.isnan(share) else sum(share > limit for limit in LIMITS)


def _limit(step: int) -> str:
    if not step:
        return "0"
    low = percent(LIMITS[step - 1])
    return f"> {low}"


def _over_steps(evidence: Evidence) -> Map:
    """Layer × step: captured spectra where there are some, else the probes' two steps each."""
    if evidence.captured:
        steps = thinned_steps(sorted(evidence.captured))
        columns = [(same(str(step)), evidence.captured[step]) for step in steps]
    else:
        columns = [
            (_called(probe, state), state.spectra)
            for probe in evidence.probes
            for state in probe.states
        ]
    return _map(Say("Layer × step", "层 × 步"), columns)


def _called(probe: ProbeRecord, state: ProbedState) -> Say:
    when = _when(probe, state)
    return Say(f"{probe.label}, {when.en}", f"{probe.label}，{when.zh}")


def _when(probe: ProbeRecord, state: ProbedState) -> Say:
    step = probe.step_of(state)
    return state_words(state) if step is None else Say(f"step {step}", f"第 {step} 步")


def thinned_steps(steps: Sequence[int]) -> list[int]:
    """At most so many of the steps as a map has columns, evenly, the last among them."""
    if len(steps) <= MOST_COLUMNS:
        return list(steps)
    places = {round(k * (len(steps) - 1) / (MOST_COLUMNS - 1)) for k in range(MOST_COLUMNS)}
    return [steps[place] for place in sorted(places)]


def _map(title: Say, columns: Sequence[tuple[Say, dict[str, Spectrum]]]) -> Map:
    rows = [*dict.fromkeys(name for _, spectra in columns for name in spectra)]
    shares = [
        [_share(spectra.get(name)) for _, spectra in columns]
        for name in rows
    ]  # fmt: skip
    return _drawn(title, rows, [words for words, _ in columns], shares)


def _share(spectrum: Spectrum | None, exponent: int = 0) -> float:
    if spectrum is None:
        return math.nan
    return spectrum.underflow(FORM, 2.0**exponent).fraction


def _over_scales(probe: ProbeRecord, state: ProbedState) -> Map:
    rows = [*state.spectra]
    shares = []
    for spectrum in state.spectra.values():
        sweep = spectrum.sweep(FORM, EXPONENTS)
        shares.append([int(n) / sweep.of if sweep.of else math.nan for n in sweep.underflow])
    words = state_words(state)
    title = Say(
        f"Layer × loss scale 2ᵏ: {probe.label}, {words.en}",
        f"层 × 损失缩放 2ᵏ：{probe.label}，{words.zh}",
    )
    return _drawn(title, rows, [same(str(k)) for k in EXPONENTS], shares)


def _drawn(
    title: Say, rows: Sequence[str], columns: Sequence[Say], shares: Sequence[Sequence[float]]
) -> Map:
    return Map(
        title=title,
        rows=tuple(rows),
        columns=tuple(columns),
        every=max(1, len(columns) // 6),
        svg=heat([[step_of(share) for share in row] for row in shares]),
        cells=tuple(tuple(percent(share) for share in row) for row in shares),
    )
