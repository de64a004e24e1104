"""The underflow map: where in the model gradients become zero, layer by step and by loss scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from floatscope.lab.probe.formats import EXPONENTS
from floatscope.report.evidence import BASELINE, Evidence, Run
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
MOST_RUNS = 6


@dataclass(frozen=True, kw_only=True)
class Map:
    """A heat map with its rows and columns."""

    title: Say
    note: Say
    rows: tuple[str, ...]
    columns: tuple[Say, ...]
    every: int
    """Under the picture, only each so many columns have their name."""
    svg: Markup
    cells: tuple[tuple[str, ...], ...]
    """The same as text, for the table."""


def section(evidence: Evidence) -> Section:
    """The section; pending without spectra of a run or a probe."""
    title = Say("Underflow map: layer by layer", "下溢地图：逐层看")
    problem = evidence.damaged.get("gradients", "")
    watched = [run for run in evidence.runs if run.label in evidence.gradients]
    if not evidence.probes and not watched:
        command = f"floatscope probe {evidence.place}"
        return Section(name="map", title=title, command=command, problem=problem)
    probe = evidence.main_probe
    maps = [_over_steps(run, evidence.gradients[run.label]) for run in watched[:MOST_RUNS]]
    if not watched:
        maps.append(_over_probes(evidence.probes))
    if probe is not None:
        maps += [_over_scales(probe, state) for state in probe.states]
    return Section(
        name="map",
        title=title,
        problem=problem,
        values={"maps": maps, "limits": [_limit(step) for step in range(len(LIMITS) + 1)]},
    )


def step_of(share: float) -> int | None:
    """The color step of a share; None where there is none."""
    return None if math.isnan(share) else sum(share > limit for limit in LIMITS)


def _limit(step: int) -> str:
    if not step:
        return "0"
    low = percent(LIMITS[step - 1])
    return f"> {low}"


def _over_steps(run: Run, gradients: dict[int, dict[str, Spectrum]]) -> Map:
    """Layer × step while a run trained: on paper for the baseline, else what really was zero."""
    columns = [(same(str(step)), gradients[step]) for step in thinned_steps([*gradients])]
    if run.recipe == BASELINE:
        return _map(
            Say(f"Layer × step: {run.label}", f"层 × 步：{run.label}"),
            Say(
                "Gradients of the run at these steps, each cast to fp16 on paper.",
                "该运行在这些步的梯度，按纸面存成 fp16。",
            ),
            columns,
            _flushed,
        )
    return _map(
        Say(f"Layer × step: {run.label}, really zero", f"层 × 步：{run.label}，实际为 0"),
        Say(
            "Exactly zero in the gradients that the run trained on, of all elements.",
            "该运行训练所用的梯度中恰为 0 的比例，占全部元素。",
        ),
        columns,
        _zero,
    )


def _over_probes(probes: Sequence[ProbeRecord]) -> Map:
    columns = [(_called(probe, state), state.spectra) for probe in probes for state in probe.states]
    return _map(
        Say("Layer × step", "层 × 步"),
        Say(
            "Two steps of each probed run: this study's runs recorded no spectra as they trained.",
            "每个被探测的运行有两步：本研究的运行在训练时没有记录谱。",
        ),
        columns,
        _flushed,
    )


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


def _map(
    title: Say,
    note: Say,
    columns: Sequence[tuple[Say, dict[str, Spectrum]]],
    share: Callable[[Spectrum], float],
) -> Map:
    rows = [*dict.fromkeys(name for _, spectra in columns for name in spectra)]
    shares = [
        [share(spectra[name]) if name in spectra else math.nan for _, spectra in columns]
        for name in rows
    ]
    return _drawn(title, note, rows, [words for words, _ in columns], shares)


def _flushed(spectrum: Spectrum) -> float:
    return spectrum.underflow(FORM, 1.0).fraction


def _zero(spectrum: Spectrum) -> float:
    return spectrum.zeros / spectrum.num_elements if spectrum.num_elements else math.nan


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
    note = Say("Each multiplied by 2ᵏ first, on paper.", "先乘 2ᵏ，按纸面。")
    return _drawn(title, note, rows, [same(str(k)) for k in EXPONENTS], shares)


def _drawn(
    title: Say,
    note: Say,
    rows: Sequence[str],
    columns: Sequence[Say],
    shares: Sequence[Sequence[float]],
) -> Map:
    return Map(
        title=title,
        note=note,
        rows=tuple(rows),
        columns=tuple(columns),
        every=max(1, len(columns) // 6),
        svg=heat([[step_of(share) for share in row] for row in shares]),
        cells=tuple(tuple(percent(share) for share in row) for row in shares),
    )
