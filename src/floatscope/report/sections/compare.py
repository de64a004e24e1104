"""Recipes compared on one gradient: each against the same in fp64."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from floatscope.lab.compare.records import Arm, Comparison, StateComparison
from floatscope.report.evidence import Evidence
from floatscope.report.section import Section
from floatscope.report.sections.number_line import STATES
from floatscope.report.svg import short
from floatscope.report.words import Say, percent, power, same

DECADES = (-8, 1)
"""Powers of ten of the error that are drawn."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One recipe in one state."""

    recipe: str
    backend: str
    scale: str
    error: str
    bar: Markup
    cosine: str
    sign_flips: str
    zeros: str
    nonfinite: str
    worst: str


def section(evidence: Evidence) -> Section:
    """The section; pending without a comparison."""
    title = Say("Recipes compared on one gradient", "各种设置在同一个梯度上的比较")
    problem = evidence.damaged.get("compare", "")
    if not evidence.comparisons:
        command = f"floatscope compare {evidence.place} --out {evidence.place}/compare"
        return Section(name="compare", title=title, command=command, problem=problem)
    return Section(
        name="compare",
        title=title,
        problem=problem,
        values={"comparisons": [_shown(found) for found in evidence.comparisons]},
    )


def _shown(comparison: Comparison) -> dict[str, object]:
    return {
        "label": comparison.label,
        "states": [
            {
                "words": STATES.get(state.name, same(state.name)),
                "rows": [*_rows(state)],
                "answers": state.answers,
                "refused": state.refused,
            }
            for state in comparison.states
        ],
    }


def _rows(state: StateComparison) -> Iterable[Row]:
    for arm in state.arms:
        whole = arm.whole
        yield Row(
            recipe=arm.recipe,
            backend=arm.backend,
            scale="1" if arm.loss_scale == 1 else power(round(math.log2(arm.loss_scale))),
            error=percent(whole.error),
            bar=_bar(whole.error),
            cosine="–" if math.isnan(whole.cosine) else f"{whole.cosine:.6f}",
            sign_flips=_share(whole.sign_flips, whole.nonzero),
            zeros=_share(whole.zeros, whole.nonzero),
            nonfinite=_share(whole.nonfinite, whole.elements),
            worst=_worst(arm),
        )


def _share(count: int, of: int) -> str:
    return percent(count / of) if of else "–"


def _worst(arm: Arm) -> str:
    """The parameter whose gradient is off most, and by how much."""
    rows = [row for row in arm.layers if row.nonzero and not math.isnan(row.error)]
    worst = max(rows, key=lambda row: row.error, default=None)
    return "" if worst is None else f"{worst.name} {percent(worst.error)}"


def _bar(error: float) -> Markup:
    """A bar on a logarithmic axis; nothing for what is no number."""
    low, high = DECADES
    if not error > 0 or math.isinf(error):
        return Markup("")
    width = 100 * min(max((math.log10(error) - low) / (high - low), 0.005), 1)
    return Markup(
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" class="fall">'
        f'<rect class="total" width="{short(width)}" height="8"/></svg>'
    )
