"""A probe's findings in few numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from floatscope.formats import FloatFormat
from floatscope.lab.probe.formats import BLOCK_FORMATS
from floatscope.lab.probe.records import (
    Backward,
    BlockTotal,
    PassRecord,
    Probe,
    ProbeFile,
    StateProbe,
    StateSummary,
    Total,
)
from floatscope.spectrum.predict import float_format
from floatscope.spectrum.spectrum import Spectrum

SCALED = 16
"""The exponent of the scale 65 536, where dynamic loss scaling begins."""
SMALLEST = -24
"""Exponent of fp16's smallest subnormal."""
BULK = 0.999

Row = TypeVar("Row", Backward, PassRecord)


def totals(rows: Iterable[Backward]) -> list[Total]:
    """One total a format and scale, in the order in which they occur."""
    groups: dict[tuple[str, int], list[Backward]] = {}
    for row in rows:
        groups.setdefault((row.format, row.exponent), []).append(row)
    return [
        Total(
            format=name,
            exponent=exponent,
            **{
                key: sum(getattr(row, key) for row in group)
                for key in ("zeros", "subnormals", "infinities", "nans", "predicted", "of")
            },
            median_error=_median([row.median_error for row in group]),
        )
        for (name, exponent), group in groups.items()
    ]


def _of_pass(rows: Iterable[Row], form: str, exponent: int) -> list[Row]:
    """The rows of one pass."""
    return [row for row in rows if (row.format, row.exponent) == (form, exponent)]


def largest_differences(
    rows: Sequence[Backward], form: str, exponent: int, num: int = 5
) -> list[Backward]:
    """Where the share of zeros differs most from the prediction, largest first; none equal."""
    chosen = _of_pass(rows, form, exponent)
    differing = [
        r for r in chosen if r.of and r.zeros != r.predicted and not (r.infinities or r.nans)
    ]
    return sorted(differing, key=lambda r: -abs(r.zeros - r.predicted) / r.of)[:num]


def bulk(spectrum: Spectrum) -> range:
    """The octaves of the middle 99.9 % of the finite non-zero elements."""
    held = spectrum.octave_counts()
    octaves, counts = [*held], [*held.values()]
    if not held:
        return range(0)
    cut = spectrum.num_finite_nonzero * (1 - BULK) / 2
    return range(_after(octaves, counts, cut), _after(octaves[::-1], counts[::-1], cut) + 1)


def _after(octaves: list[int], counts: list[int], cut: float) -> int:
    """The first octave at which more than `cut` elements have been passed."""
    seen = 0
    for octave, count in zip(octaves, counts, strict=True):
        seen += count
        if seen > cut:
            return octave
    return octaves[-1]


def answers(state: StateProbe) -> list[str]:
    """The course document's three questions, answered with this state's numbers."""
    total, fp16 = state.total, float_format("fp16")
    return [_lost(total), _span(total, fp16), *_reality(state)]


def _lost(total: Spectrum) -> str:
    below, scaled = total.below(SMALLEST), total.below(SMALLEST - SCALED)
    zero = total.underflow("fp16"), total.underflow("fp16", 2.0**SCALED)
    over = total.overflow("fp16", 2.0**SCALED)
    beyond = f"; {percent(over.fraction)} overflow" if over.count else ""
    return (
        f"Unscaled, {percent(below.fraction)} of the non-zero gradient elements lie below 2^-24, "
        f"fp16's smallest value, and {percent(zero[0].fraction)} round to zero. Times 65 536, "
        f"{percent(scaled.fraction)} lie below, and {percent(zero[1].fraction)} round to "
        f"zero{beyond}."
    )


def _span(total: Spectrum, form: FloatFormat) -> str:
    octaves, middle = total.octaves, bulk(total)
    wider = {True: "wider than", False: "narrower than"}[len(octaves) > form.num_octaves]
    if len(octaves) == form.num_octaves:
        wider = "as wide as"
    bf16 = float_format("bf16")
    inside = bf16.min_octave <= octaves[0] and octaves[-1] <= bf16.emax
    window = total.safe_scales(form, 0.001)
    fits = (
        f"With scales from 2^{window.k_min} to 2^{window.k_max} nothing overflows fp16 and at most "
        "0.1 % underflows."
        if window
        else f"No scale keeps all but 0.1 % in fp16: {window.why}."
    )
    return (
        f"The non-zero values span {_octaves(len(octaves))}, from 2^{octaves[0]} to "
        f"2^{octaves[-1] + 1}: {wider} fp16's {form.num_octaves}; 99.9 % of them lie within "
        f"{_octaves(len(middle))}. {fits} {'All' if inside else 'Not all'} of them lie within "
        "bf16's range unscaled."
    )


def _reality(state: StateProbe) -> list[str]:
    found: list[str] = []
    for total in totals(state.backward):
        if total.format != "fp16" or total.exponent not in (0, SCALED):
            continue
        paper, real = total.predicted / total.of, total.zeros / total.of
        if all(row.error == 0 for row in _of_pass(state.backward, "fp16", total.exponent)):
            found.append(
                f"At scale {scale_text(total.exponent)} nothing ran in fp16: every gradient is "
                "that of fp32 to the bit. Does the loss function choose its own autocast?"
            )
            continue
        text = (
            f"Really run in fp16 at scale {scale_text(total.exponent)}, {percent(real)} are zero "
            f"where the paper says {percent(paper)}{_not_numbers(state, total)}"
        )
        worst = largest_differences(state.backward, "fp16", total.exponent, 1)
        if worst:
            row = worst[0]
            text += (
                f"; they differ most in {row.name} ({percent(row.zeros / row.of)} for "
                f"{percent(row.predicted / row.of)})"
            )
        found.append(f"{text}.{_on_the_way(state, total.exponent)}")
    return found


def _not_numbers(state: StateProbe, total: Total) -> str:
    broken = total.infinities + total.nans
    if not broken:
        return ""
    text = f", and {percent(broken / total.of)} are infinite or NaN"
    passes = _of_pass(state.passes, total.format, total.exponent)
    if any(not math.isfinite(p.loss) for p in passes):
        text += " (the loss is not finite: the forward pass overflowed, which no scale cures)"
    return text


def _on_the_way(state: StateProbe, exponent: int) -> str:
    """The activation gradients that were lost before any weight gradient was formed."""
    rows = [r for r in _of_pass(state.on_the_way, "fp16", exponent) if r.of]
    if not rows:
        return ""
    worst = max(rows, key=lambda r: r.zeros / r.of)
    if not worst.zeros:
        return f" None of the {len(rows)} gradients of module outputs that were seen has a zero."
    what = f"{worst.name}'s output" if worst.name else "the model's output"
    lost = percent(worst.zeros / worst.of)
    return f" On the way there, {lost} of the elements of the gradient of {what} are zero."


def summary(probe: Probe) -> ProbeFile:
    """What `floatscope probe --json` prints and `probe.json` holds."""
    return ProbeFile(
        label=probe.label,
        origin=probe.origin,
        environment=probe.environment,
        states=tuple(_state_summary(state) for state in probe.states),
    )


def _state_summary(state: StateProbe) -> StateSummary:
    total = state.total
    octaves, middle = total.octaves, bulk(total)
    return StateSummary(
        name=state.name,
        loss=state.loss,
        elements=total.num_elements,
        nonzero=total.num_finite_nonzero,
        octaves=(octaves[0], octaves[-1]),
        bulk_octaves=(middle[0], middle[-1]),
        below_smallest_fp16=total.below(SMALLEST).fraction,
        below_smallest_fp16_at_65536=total.below(SMALLEST - SCALED).fraction,
        without_gradient=state.without_gradient,
        predictions=state.predictions,
        block_formats=tuple(block_totals(state)),
        passes=state.passes,
        totals=tuple(totals(state.backward)),
        answers=tuple(answers(state)),
    )


def block_totals(state: StateProbe) -> list[BlockTotal]:
    """Each block format on all gradients together; the error is of the whole."""
    found: list[BlockTotal] = []
    energy = {name: s.sum_of_squares for name, s in state.spectra.items()}
    for form in BLOCK_FORMATS:
        rows = [m for m in state.measured if m.format == form]
        lost = math.fsum(m.error**2 * energy[m.name] for m in rows)
        found.append(
            BlockTotal(
                format=form,
                underflow=sum(m.underflow for m in rows),
                saturated=sum(m.saturated for m in rows),
                of=sum(m.of for m in rows),
                error=math.sqrt(lost / math.fsum(energy.values())),
            )
        )
    return found


def percent(share: float) -> str:
    """A share in percent: two significant digits where it is small, and 0 only for 0."""
    if math.isnan(share):
        return "NaN"
    if share == 0:
        return "0 %"
    if math.isinf(share):
        return "inf"
    value = 100 * share
    if value < 1e-4:
        return f"{value:.0e} %"
    return f"{value:.2g} %" if value < 1 else f"{value:.1f} %"


def _octaves(number: int) -> str:
    return f"{number} octave{'' if number == 1 else 's'}"


def scale_text(exponent: int) -> str:
    """1, or 2^k."""
    return "1" if exponent == 0 else f"2^{exponent}"


def _median(values: list[float]) -> float:
    there = sorted(v for v in values if not math.isnan(v))
    return there[len(there) // 2] if there else math.nan
