"""Exact numbers as text: what is printed without "≈" is exact."""

from __future__ import annotations

import math
from fractions import Fraction

MAX_DIGITS = 9
MAX_ECHO = 40
"""Characters of a given text that a message repeats."""


def shown(value: Fraction | float | None, digits: int = 6) -> str:
    """A value as people read it.

    Whole numbers and short decimals stand as they are; powers of two that are small or long as 2^k;
    what has no short exact form is rounded to so many digits behind "≈". None is "–".
    """
    if value is None:
        return "–"
    if not isinstance(value, Fraction):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        if value == 0:
            return "-0" if math.copysign(1, value) < 0 else "0"
        value = Fraction(value)
    exponent = _power_of_two(abs(value))
    text = _decimal(value)
    if exponent is not None and (text is None or exponent < -3):
        return f"{'-' if value < 0 else ''}2^{exponent}"
    if text is not None:
        return text
    return f"≈{_scientific(value, digits)}"


def echoed(given: object) -> str:
    """What was given, as a message repeats it: shortened if it is a long text or number."""
    text = given if isinstance(given, str) else _echoed_number(given)
    return text if len(text) <= MAX_ECHO else f"{text[: MAX_ECHO - 1]}…"


def exact_decimal(value: Fraction) -> str:
    """All decimal digits of a value whose denominator is a power of two."""
    shift = value.denominator.bit_length() - 1
    digits = abs(value.numerator) * 5**shift
    return ("-" if value < 0 else "") + decimal_of_tens(digits, shift)


def _echoed_number(given: object) -> str:
    """A number as Python writes it, or as `shown` does if that takes long."""
    if isinstance(given, int):
        given = Fraction(given)
    if isinstance(given, Fraction):
        bits = given.numerator.bit_length() + given.denominator.bit_length()
        return str(given) if bits <= 3 * MAX_ECHO else shown(given)
    return str(given)


def _decimal(value: Fraction) -> str | None:
    if value.denominator & (value.denominator - 1):
        return None
    if abs(value) >= 10**MAX_DIGITS or value.denominator.bit_length() > 4 * MAX_DIGITS:
        return None
    text = exact_decimal(value)
    return text if sum(c.isdigit() for c in text) <= MAX_DIGITS else None


def _power_of_two(magnitude: Fraction) -> int | None:
    if magnitude.denominator == 1 and magnitude.numerator.bit_count() == 1:
        return magnitude.numerator.bit_length() - 1
    if magnitude.numerator == 1 and magnitude.denominator.bit_count() == 1:
        return 1 - magnitude.denominator.bit_length()
    return None


def _scientific(value: Fraction, digits: int) -> str:
    """So many significant digits, correctly rounded also beyond the range of a float."""
    exponent = math.floor(_log10(abs(value)))
    scaled = round(abs(value) * Fraction(10) ** (digits - 1 - exponent))
    if scaled >= 10**digits:
        scaled, exponent = scaled // 10, exponent + 1
    sign = "-" if value < 0 else ""
    if -4 <= exponent < digits:  # near one: no exponent
        return sign + decimal_of_tens(scaled, digits - 1 - exponent)
    return f"{sign}{decimal_of_tens(scaled, digits - 1)}e{exponent}"


def decimal_of_tens(digits: int, shift: int) -> str:
    """Digits / 10^shift, without trailing zeros."""
    text = str(digits).rjust(shift + 1, "0")
    whole, fraction = (text[:-shift], text[-shift:].rstrip("0")) if shift else (text, "")
    return whole + (f".{fraction}" if fraction else "")


def _log10(magnitude: Fraction) -> float:
    estimate = math.log10(magnitude.numerator) - math.log10(magnitude.denominator)
    rounded = round(estimate)
    if abs(estimate - rounded) < 1e-9:  # too close to tell in floating point
        return rounded if magnitude >= Fraction(10) ** rounded else rounded - 0.5
    return estimate
