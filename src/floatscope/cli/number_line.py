"""A spectrum on the number line, for the terminal: bars an octave, and formats' ranges below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from floatscope.formats import FloatFormat
from floatscope.lab.probe.answers import percent
from floatscope.spectrum.predict import float_format
from floatscope.spectrum.spectrum import Spectrum

LABEL = 15
COLUMNS = 48
HEIGHT = 5
_EIGHTHS = " ▁▂▃▄▅▆▇█"
ZONES = {"zero": ("·", "red"), "subnormal": ("░", "yellow"), "normal": ("━", "green"),
         "overflow": ("×", "magenta")}  # fmt: skip
TICK = 8


def number_line(spectrum: Spectrum, ranges: Sequence[tuple[str, int]]) -> list[Text]:
    """Lines of a picture, at most 80 columns wide.

    Args:
        spectrum: with at least one finite non-zero element.
        ranges: formats by name and the exponents of the scales, drawn as the values before scaling
            see them.
    """
    per_column = -(-(len(spectrum.octaves) + 2) // COLUMNS)
    first = (spectrum.octaves[0] - 1) // per_column * per_column
    columns = range(first, spectrum.octaves[-1] + 2, per_column)
    lines = _bars(spectrum, columns)
    lines.append(_axis(columns))
    for name, exponent in ranges:
        lines.append(_zones(spectrum, float_format(name), exponent, columns))
    key = Text(" " * LABEL)
    for zone, (mark, color) in ZONES.items():
        key.append(f"{mark} {zone}   ", style=color)
    return [*lines, key]


def _bars(spectrum: Spectrum, columns: range) -> list[Text]:
    """Linear in the share of elements; an octave that holds any shows at least a sliver."""
    held = spectrum.octave_counts()
    counts = [sum(held.get(e + k, 0) for k in range(columns.step)) for e in columns]
    top = max(counts)
    eighths = [max(1, round(8 * HEIGHT * n / top)) if n else 0 for n in counts]
    rows = []
    for row in reversed(range(HEIGHT)):
        cells = [_EIGHTHS[min(8, max(0, e - 8 * row))] for e in eighths]
        share = f"{100 * top / spectrum.num_finite_nonzero:.1f} %" if row == HEIGHT - 1 else ""
        rows.append(Text(f"{share:>{LABEL - 1}} " + "".join(cells).rstrip()))
    return rows


def _axis(columns: range) -> Text:
    cells = [" "] * (len(columns) + 5)
    for place, octave in enumerate(columns):
        if octave % (TICK * columns.step) == 0:
            label = f"{octave}"
            cells[place : place + len(label)] = label
    return Text(f"{'log2':>{LABEL - 1}} " + "".join(cells).rstrip(), style="dim")


def _zones(spectrum: Spectrum, form: FloatFormat, exponent: int, columns: range) -> Text:
    scale = f" × 2^{exponent}" if exponent else ""
    line = Text(f" {form.name}{scale}".ljust(LABEL))
    for octave in columns:
        mark, color = ZONES[_zone(form, octave + exponent)]
        line.append(mark, style=color)
    lost = spectrum.underflow(form, 2.0**exponent).fraction
    return line.append(f"  {percent(lost)} zero")


def _zone(form: FloatFormat, octave: int) -> str:
    """What becomes of most values of an octave."""
    if octave > form.emax:
        return "overflow"
    if octave >= form.emin:
        return "normal"
    return "subnormal" if octave >= form.min_octave - 1 else "zero"
