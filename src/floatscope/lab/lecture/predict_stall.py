"""Where a sum of equal numbers stalls, from ulps alone: by octaves, not by additions."""

from __future__ import annotations

from fractions import Fraction

from floatscope.formats import FloatFormat
from floatscope.formats import format as format_called
from floatscope.formats.values import octave_of
from floatscope.rounding import round_value


def predicted_stall(name: str, increment: float) -> tuple[int, float]:
    """After how many additions to zero a sum stands still, and where.

    Within an octave every addition moves the sum by the same whole number of ulps, the increment's
    length rounded to nearest: once two moves in a row are equal, so are all up to the octave's end
    (a tie makes the first one differ). So an octave takes one division, and the sum stands still in
    the first octave where that number is zero.

    Args:
        name: a float format, whose range the sum does not leave before.
        increment: a positive number of that format.
    """
    form = format_called(name)
    assert isinstance(form, FloatFormat)
    addend, total, additions = Fraction(increment), Fraction(0), 0
    while (move := _moved(total, addend, form)) > 0:
        total, additions = total + move, additions + 1
        if _moved(total, addend, form) == move:
            repeats = (Fraction(2) ** (octave_of(total) + 1) - total) // move
            total, additions = total + repeats * move, additions + int(repeats)
    return additions, float(total)


def _moved(total: Fraction, addend: Fraction, form: FloatFormat) -> Fraction:
    rounded = round_value(total + addend, form)
    assert isinstance(rounded, Fraction)
    return rounded - total
