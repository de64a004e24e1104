"""Rounding one value, in exact rationals: the oracle that every kernel is held to.

It is written to be read. The value is measured in units of the last place of its octave; the whole
part and the next are its two neighbors, the rest decides between them, and the result is looked at
once more for overflow.
"""

from __future__ import annotations

import math
from fractions import Fraction

from floatscope.errors import FormatError
from floatscope.formats import FloatFormat, IntFormat
from floatscope.formats.show import echoed
from floatscope.formats.values import Value, exactly, octave_of
from floatscope.rounding.modes import Overflow, Rounding
from floatscope.rounding.rules import Rules, ScalarFormat, has_zero, resolve

HALF = Fraction(1, 2)
RANDOM_BITS = 32


def round_value(
    value: Value | int | str,
    form: ScalarFormat,
    rules: Rules | str | None = None,
    *,
    rounding: Rounding | None = None,
    overflow: Overflow | None = None,
    flush_subnormals: bool | None = None,
    random: int | None = None,
    random_bits: int = RANDOM_BITS,
) -> Value:
    """Round `value` to `form`.

    Args:
        value: any number; NaN and infinities as floats.
        form: a float or integer format.
        rules: what happens at the edges, or its name; the standard's own by default.
        rounding: which neighbor is taken; wins over the rules, like the next two.
        overflow: what a result beyond the largest value becomes, and an infinite input.
        flush_subnormals: whether a subnormal result becomes a zero of its sign.
        random: for stochastic rounding, a whole number in [0, 2^random_bits). The larger neighbor
            is taken if it is below the value's distance from the smaller one, in units of
            2^-random_bits of their distance: rounded to nearest, halves up, after cutting it to 32
            bits.
        random_bits: 1 to 32.

    Returns:
        A `Fraction`, or one of the floats -0.0, inf, -inf, nan. A zero keeps the value's sign where
        the format has a negative zero.

    Raises:
        FormatError: a policy that the format cannot express, or one that says "raise" and applies.
    """
    chosen = resolve(
        form, rules, rounding=rounding, overflow=overflow, flush_subnormals=flush_subnormals
    )
    exact = exactly(value)
    if not isinstance(exact, Fraction):
        if math.isnan(exact):
            return _nan(exact, form, chosen)
        if math.isinf(exact):
            return _beyond(exact < 0, form, chosen, chosen.infinity)
        exact, negative = Fraction(0), True  # -0
    else:
        negative = exact < 0
    if exact == 0 and not has_zero(form):
        return _without(form, chosen.zero, "zero")
    if negative and exact and _is_unsigned(form):
        if chosen.negative != "magnitude":
            return _without(form, chosen.negative, echoed(value))
        negative, exact = False, -exact

    unit = _unit(exact, form)
    whole, rest = divmod(abs(exact) / unit, 1)
    up = _takes_the_larger(int(whole), rest, negative, chosen.rounding, random, random_bits)
    magnitude = (int(whole) + up) * unit
    return _finish(magnitude, negative, form, chosen)


def _finish(magnitude: Fraction, negative: bool, form: ScalarFormat, rules: Rules) -> Value:
    """What becomes of a rounded magnitude at the two ends of the format."""
    if magnitude > (-form.min if negative and isinstance(form, IntFormat) else form.max):
        return _beyond(negative, form, rules, "saturate" if _inward(rules, negative) else None)
    if isinstance(form, IntFormat):
        return -magnitude if negative else magnitude
    if rules.flush_subnormals and magnitude < form.smallest_normal:
        magnitude = Fraction(0)
    if magnitude == 0:
        if not form.zero:
            return form.smallest
        return -0.0 if negative and form.has_negative_zero else Fraction(0)
    return -magnitude if negative else magnitude


def _unit(exact: Fraction, form: ScalarFormat) -> Fraction:
    """The distance between neighbors around a value."""
    if isinstance(form, IntFormat):
        return form.step
    exponent = max(octave_of(abs(exact)), form.emin) if exact else form.emin
    return Fraction(2) ** (exponent - form.fraction_bits)


def _takes_the_larger(
    whole: int, rest: Fraction, negative: bool, rounding: Rounding, random: int | None, bits: int
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
            if random is None or not 0 <= random < 1 << bits:
                raise FormatError(f"stochastic rounding needs a random number below 2^{bits}.")
            cut = int(rest * (1 << RANDOM_BITS))
            return random < cut if bits == RANDOM_BITS else random < _to_bits(cut, bits)


def _to_bits(cut: int, bits: int) -> int:
    """A number of 32 bits to its upper `bits`, to nearest, halves up."""
    spare = RANDOM_BITS - bits
    return (cut + (1 << (spare - 1))) >> spare


def _inward(rules: Rules, negative: bool) -> bool:
    """Whether the rounding never leaves the finite values (IEEE 754-2019, section 7.4)."""
    return (
        rules.rounding in ("toward-zero", "to-odd")
        or (rules.rounding == "up" and negative)
        or (rules.rounding == "down" and not negative)
    )


def _is_unsigned(form: ScalarFormat) -> bool:
    return isinstance(form, FloatFormat) and not form.signed


def _nan(value: float, form: ScalarFormat, rules: Rules) -> Value:
    match rules.nan:
        case "keep":
            return math.nan
        case "max":
            return form.max
        case "zero":
            return Fraction(0)
        case "opposite_zero":
            return Fraction(0) if math.copysign(1, value) < 0 else -0.0
    raise FormatError(f"{form.name} has no NaN.")


def _beyond(
    negative: bool, form: ScalarFormat, rules: Rules, policy: Overflow | None = None
) -> Value:
    """What a magnitude beyond the largest value becomes."""
    if negative and _is_unsigned(form):
        if rules.negative != "magnitude":
            return _without(form, rules.negative, "negative numbers")
        negative = False
    policy = policy or rules.overflow
    if policy == "raise":
        raise FormatError(f"overflow: beyond the largest value of {form.name}.")
    if policy == "to_nan":
        return math.nan
    if policy == "to_inf":
        return -math.inf if negative else math.inf
    if isinstance(form, IntFormat):
        return form.min if negative else form.max
    return -form.max if negative else form.max


def _without(form: ScalarFormat, policy: str, what: str) -> Value:
    """What a format that has no zero, or no sign, makes of such a number."""
    if policy == "raise":
        raise FormatError(f"{form.name} holds no {what}.")
    assert isinstance(form, FloatFormat)
    return math.nan if policy == "to_nan" else form.smallest
