"""Cells: the parts of an octave between the significands at which some format rounds otherwise.

A non-zero magnitude s * 2^e with 1 <= s < 2 belongs to octave e. Under rounding to nearest, ties to
even, a format with p fraction bits changes its answer, whatever power of two x is multiplied by,
at four kinds of significand and at no other:

    s = 1              the tie between zero and the smallest value, which zero wins
    s = 2 - 2^-p       rounds up to the smallest normal value (a tie, whose even side is normal)
    s = 2 - 2^-(p+1)   overflows, where the largest value has a fraction of ones (a tie lost)
    s > 2 - 3 2^-(p+1) overflows, where the all-ones fraction is set aside for NaN (a tie kept)

So an octave is cut into the point s = 1 and, for L = 0, 1, 2, ..., the numbers whose fraction
begins with exactly L ones, 2 - 2^-L <= s < 2 - 2^-(L+1), cut once more above the middle of these,
2 - 3 2^-(L+2). That last cut is for formats with p = L + 1. These are the *classes* of an octave,
numbered by growing significand: 0 for s = 1, then 1 + 2 L and 2 + 2 L. They are exact for every
format of any precision, those of the catalogue and all eXmY. A fraction of 23 bits fills 46 of the
first 48, one of 52 bits 104 of 106.

A cell's *key* is 128 * octave + class: keys are ordered like the magnitudes in their cells. Every
prediction is therefore a sum of counts below a key, and a scale of 2^k adds 128 k to all keys.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from floatscope.errors import FormatError
from floatscope.formats import FloatFormat

STRIDE = 128
"""Keys from one octave to the next."""


def num_classes(fraction_bits: int) -> int:
    """Classes that significands with so many fraction bits can fall into."""
    return 2 + 2 * fraction_bits


def octave_of(value: Fraction) -> int:
    """The e with 2^e <= value < 2^(e+1)."""
    octave = value.numerator.bit_length() - value.denominator.bit_length()
    return octave if Fraction(2) ** octave <= value else octave - 1


def key_of(value: Fraction) -> int:
    """The key of a positive number's cell."""
    octave = octave_of(value)
    rest = 2 - value / Fraction(2) ** octave  # 2 - s: 1 at the octave's start, towards 0 at its end
    if rest == 1:
        return STRIDE * octave
    ones = -octave_of(rest) - (rest != Fraction(2) ** octave_of(rest))
    is_upper = rest < Fraction(3, 4) / 2**ones
    return STRIDE * octave + 1 + 2 * ones + is_upper


def first_key(threshold: Fraction, *, inclusive: bool) -> int:
    """The smallest key of all cells above a threshold; with `inclusive`, at or above it.

    Raises:
        FormatError: the threshold runs through the middle of a cell.
    """
    octave = octave_of(threshold)
    rest = 2 - threshold / Fraction(2) ** octave
    power = Fraction(2) ** octave_of(rest)
    if rest == 1 and not inclusive:
        return STRIDE * octave + 1
    if rest == power and inclusive:
        return key_of(threshold)
    if rest == power * 3 / 2 and not inclusive:
        return key_of(threshold) + 1
    raise FormatError(f"no edge between cells at {'>=' if inclusive else '>'} {threshold}.")


@cache
def edges_of(form: FloatFormat) -> tuple[int | None, int | None, int]:
    """Keys of a format: the first that does not become zero, that becomes normal, that overflows.

    Magnitudes, rounded to nearest with ties to even. None where there is no zero, and no subnormal.
    """
    zero = first_key(form.zero_threshold, inclusive=False) if form.zero else None
    normal = None
    if form.zero and form.fraction_bits:
        last_step = Fraction(2) ** (form.emin - form.fraction_bits)
        normal = first_key(form.smallest_normal - last_step / 2, inclusive=True)
    over = first_key(form.overflow_threshold, inclusive=form.tie_overflows)
    return zero, normal, over
