"""Rounding one value, in exact rationals: the oracle that every kernel is held to.

It is written to be read. The value is measured in units of the last place of its octave; the whole
part and the next are its two neighbors, the rest decides between them, and the result is looked at
once more for overflow.
"""

from __future__ import annotations

import math
from fractions import Fraction

from floatscope.errors import FormatError
from floatscope.formats import FloatFormat
from floatscope.formats.values import Value, exactly, octave_of
from floatscope.rounding.modes import Overflow, Rounding, check_choices

HALF = Fraction(1, 2)


def round_value(
    value: Value | int | str,
    form: FloatFormat,
    *,
    rounding: Rounding = "nearest-even",
    overflow: Overflow,
    flush_subnormals: bool = False,
    random: Fraction | None = None,
) -> Value:
    """Round `value` to `form`.

    Args:
        value: any number; NaN and infinities as floats.
        form: the format.
        rounding: which neighbor is taken.
        overflow: what a result beyond the largest value becomes; a format without zero treats what
            it cannot hold near and below zero alike.
        flush_subnormals: whether a subnormal result becomes a zero of its sign.
        random: for stochastic rounding, a number in [0, 1): the larger neighbor is taken if it is
            below the value's distance from the smaller one, in units of their distance.

    Returns:
        A `Fraction`, or one of the floats -0.0, inf, -inf, nan. A zero keeps the value's sign where
        the format has a negative zero.

    Raises:
        FormatError: NaN, or a policy, that the format cannot express; or `overflow="raise"` and
            the value overflows.
    """
    check_choices(form, rounding, overflow)
    exact = exactly(value)
    if not isinstance(exact, Fraction):
        if math.isnan(exact):
            return _nan(form)
        if math.isinf(exact):
            return _overflowed(exact < 0, form, overflow)
        exact, negative = Fraction(0), True  # -0
    else:
        negative = exact < 0
    if negative and exact and not form.signed:
        return _underflowed(value, form, overflow)

    exponent = max(octave_of(abs(exact)), form.emin) if exact else form.emin
    unit = Fraction(2) ** (exponent - form.fraction_bits)
    whole, rest = divmod(abs(exact) / unit, 1)
    steps = int(whole) + _takes_the_larger(int(whole), rest, negative, rounding, random)
    magnitude = steps * unit

    if magnitude > form.max:
        inward = (rounding in ("toward-zero", "to-odd"), rounding == "up" and negative,
                  rounding == "down" and not negative)  # fmt: skip
        if any(inward):  # IEEE 754-2019, section 7.4: these modes never leave the finite values
            overflow = "saturate"
        return _overflowed(negative, form, overflow)
    if flush_subnormals and magnitude < form.smallest_normal:
        magnitude = Fraction(0)
    if magnitude == 0:
        if not form.zero:
            return _underflowed(value, form, overflow)
        return -0.0 if negative and form.has_negative_zero else Fraction(0)
    return -magnitude if negative else magnitude


def _takes_the_larger(
    whole: int, rest: Fraction, negative: bool, rounding: Rounding, random: Fraction | None
) -> bool:
    """Whether the neighbor of larger magnitude is taken, `rest` of the way from the smaller one."""
    if rest == 0:
        return False
    match rounding:
        case "nearest-even":
            return rest > HALF or (rest == HALF and whole % 2 == 1)
        case "nearest-away":
            return rest >= HALF
        case "toward-zero":
            return False
        case "up":
            return not negative
        case "down":
            return negative
        case "to-odd":
            return whole % 2 == 0
        case "stochastic":
            if random is None or not 0 <= random < 1:
                raise FormatError("stochastic rounding needs a random number in [0, 1).")
            return random < rest


def _nan(form: FloatFormat) -> float:
    if not form.has_nan:
        raise FormatError(f"{form.name} has no NaN.")
    return math.nan


def _overflowed(negative: bool, form: FloatFormat, overflow: Overflow) -> Value:
    if overflow == "raise":
        raise FormatError(f"overflow: beyond the largest value of {form.name}.")
    if overflow == "to_nan":
        return math.nan
    if overflow == "to_inf":
        return -math.inf if negative else math.inf
    if negative and not form.signed:
        return form.smallest if not form.zero else Fraction(0)
    return -form.max if negative else form.max


def _underflowed(value: object, form: FloatFormat, overflow: Overflow) -> Value:
    """What an unsigned format, or one without zero, makes of a value below its smallest."""
    if overflow == "raise":
        raise FormatError(f"{form.name} holds nothing near {value}.")
    if overflow == "to_nan":
        return math.nan
    return Fraction(0) if form.zero else form.smallest
