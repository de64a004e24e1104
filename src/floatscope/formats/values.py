"""One value at a time, exactly: decode, encode, neighbors, ulp, class.

A finite value is a `Fraction`; infinities and NaN are Python floats, and so is negative zero, which
no fraction can be.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Literal

from floatscope.errors import FormatError
from floatscope.formats.float_format import FloatFormat, Specials
from floatscope.formats.show import echoed, shown

Value = Fraction | float
Class = Literal["zero", "subnormal", "normal", "infinite", "nan"]

MAX_EXPONENT = 20_000
"""Of a number written as text, of ten or two; every format that has a name lies far inside."""
MAX_TEXT = 4_000
"""Characters of a number written as text; Python converts 4300 digits at most."""

_HEX_FLOAT = re.compile(r"([-+]?)0x(?=\.?[0-9a-f])([0-9a-f]*)\.?([0-9a-f]*)(?:p([-+]?[0-9]+))?")
_DECIMAL_EXPONENT = re.compile(r"e([-+]?[\d_]+)$")


def decode(code: int, form: FloatFormat) -> Value:
    """The value of a code.

    Returns:
        A `Fraction`, or one of the floats -0.0, inf, -inf, nan.

    Raises:
        FormatError: the code has more bits than the format.
    """
    if not 0 <= code < form.num_codes:
        raise FormatError(
            f"code {echoed(f'{code:#x}')} does not fit {form.name}, whose codes end at "
            f"{form.num_codes - 1:#x}."
        )
    kind = classify(code, form)
    negative = bool(code & form.sign_mask)
    if kind == "nan":
        return math.nan
    if kind == "infinite":
        return -math.inf if negative else math.inf
    magnitude = form.magnitude_of(code & ~form.sign_mask)
    if negative:
        return -magnitude if magnitude else -0.0
    return magnitude


def classify(code: int, form: FloatFormat) -> Class:
    """Which kind of value a code stands for."""
    magnitude = code & ~form.sign_mask
    if form.specials is Specials.NEGATIVE_ZERO_NAN and code == form.sign_mask:
        return "nan"
    if form.specials is Specials.OUTERMOST_NAN and magnitude == largest_code(form) + 1:
        return "nan"
    if form.infinity_code is not None and magnitude >= form.infinity_code:
        return "infinite" if magnitude == form.infinity_code else "nan"
    if form.zero and magnitude == 0:
        return "zero"
    if form.zero and magnitude >> form.fraction_bits == 0:
        return "subnormal"
    return "normal"


def encode(value: Value | int | str, form: FloatFormat) -> int:
    """The code of a value that the format holds exactly; `rounding` is for those it does not.

    Args:
        value: a number; the string "-0" and the float -0.0 are negative zero; NaN gives the
            canonical NaN.
        form: the format.

    Raises:
        FormatError: the format does not hold the value; the message gives the neighbors.
    """
    exact = exactly(value)
    if not isinstance(exact, Fraction):
        return _encode_special(exact, form)
    sign = form.sign_mask if exact < 0 else 0
    if exact < 0 and not form.signed:
        raise FormatError(f"{form.name} is unsigned and does not hold {echoed(value)}.")
    code = _floor_code(abs(exact), form)
    if code is None or form.magnitude_of(code) != abs(exact):
        below, above = neighbors(exact, form)
        raise FormatError(
            f"{form.name} does not hold {echoed(value)} exactly; its neighbors there are "
            f"{_shown(below)} and {_shown(above)}."
        )
    return sign | code


def exactly(value: Value | int | str) -> Value:
    """A number of any kind as a `Fraction`, or as a float if it is -0, infinite or NaN.

    Raises:
        FormatError: a text that is no number, or one too long or too far from 1 to compute with.
    """
    if isinstance(value, str):
        text = value.strip().lower()
        if text in ("inf", "+inf", "-inf", "nan", "+nan", "-nan", "infinity", "-infinity"):
            return float(text)
        number = _parsed(text, value)
        return -0.0 if number == 0 and text.startswith("-") else number
    if isinstance(value, float):
        is_special = not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0)
        return value if is_special else Fraction(value)
    return Fraction(value)


def _parsed(text: str, given: str) -> Fraction:
    """A decimal, a quotient or a hex float, exactly."""
    if len(text) > MAX_TEXT:
        raise FormatError(
            f"{echoed(given)!r} has {len(text)} characters; a number may have {MAX_TEXT}."
        )
    hexadecimal = _HEX_FLOAT.fullmatch(text)
    decimal = None if hexadecimal else _DECIMAL_EXPONENT.search(text)
    exponent = hexadecimal[4] if hexadecimal else decimal and decimal[1]
    try:
        if exponent and abs(int(exponent)) > MAX_EXPONENT:
            raise FormatError(
                f"the exponent of {echoed(given)!r} lies beyond every format; it may be "
                f"{MAX_EXPONENT} either way."
            )
        return _hex_parsed(hexadecimal) if hexadecimal else Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise FormatError(
            f"{echoed(given)!r} is no number; write a decimal, a hex float such as 0x1.8p-3, inf "
            "or nan."
        ) from None


def _hex_parsed(match: re.Match[str]) -> Fraction:
    sign, whole, fraction, exponent = match.groups()
    magnitude = int(whole + fraction, 16) * Fraction(2) ** (int(exponent or 0) - 4 * len(fraction))
    return -magnitude if sign == "-" else magnitude


def neighbors(value: Value | int | str, form: FloatFormat) -> tuple[Value | None, Value | None]:
    """The largest value of the format below `value` and the smallest above it, both different.

    None where there is none: below the lowest value of a format without infinity, say.

    Raises:
        FormatError: `value` is NaN.
    """
    exact = exactly(value)
    if not isinstance(exact, Fraction):
        if math.isnan(exact):
            raise FormatError("NaN has no neighbors.")
        if math.isinf(exact):
            beyond = 2 * form.max if exact > 0 else -2 * form.max
            inside = _below(beyond, form) if exact > 0 else _above(beyond, form)
            return (inside, None) if exact > 0 else (None, inside)
        exact = Fraction(0)
    return _below(exact, form), _above(exact, form)


def ulp(value: Value | int | str, form: FloatFormat) -> Fraction:
    """The distance between neighboring values of the format in the octave of `value`.

    Below the smallest normal it is the smallest subnormal; above the largest value, the distance in
    the topmost octave.

    Raises:
        FormatError: `value` is infinite or NaN.
    """
    exact = exactly(value)
    if not isinstance(exact, Fraction):
        if exact != 0 or math.isnan(exact):
            raise FormatError(f"{exact} has no ulp.")
        exact = Fraction(0)
    exponent = octave_of(abs(exact)) if exact else form.emin
    return Fraction(2) ** (min(max(exponent, form.emin), form.emax) - form.fraction_bits)


def octave_of(magnitude: Fraction) -> int:
    """The e with 2^e <= magnitude < 2^(e+1), for a positive magnitude."""
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return exponent if magnitude >= Fraction(2) ** exponent else exponent - 1


def largest_code(form: FloatFormat) -> int:
    """The code of the largest finite value."""
    return form._largest_finite_magnitude


def _floor_code(magnitude: Fraction, form: FloatFormat) -> int | None:
    """Code of the largest value that is at most `magnitude`; None if there is none."""
    if magnitude >= form.max:
        return largest_code(form)
    if magnitude < form.smallest:
        return 0 if form.zero else None
    exponent = max(octave_of(magnitude), form.emin)
    steps = magnitude / Fraction(2) ** (exponent - form.fraction_bits)
    whole = steps.numerator // steps.denominator
    field = exponent + form.bias
    hidden = 1 << form.fraction_bits
    return (field << form.fraction_bits) + whole - hidden if whole >= hidden else whole


def _above(value: Fraction, form: FloatFormat) -> Value | None:
    """The smallest value of the format above `value`."""
    if value < 0:
        return _negated(_inward(-value, form)) if form.signed else form.magnitude_of(0)
    code = _floor_code(value, form)
    if code is None:
        return form.smallest
    if code < largest_code(form):
        return form.magnitude_of(code + 1)
    return math.inf if form.has_infinity else None


def _below(value: Fraction, form: FloatFormat) -> Value | None:
    """The largest value of the format below `value`."""
    if value > 0:
        return _inward(value, form)
    return _negated(_above(-value, form)) if form.signed else None


def _inward(magnitude: Fraction, form: FloatFormat) -> Fraction | None:
    """The largest value of the format that is not negative and below a positive `magnitude`."""
    code = _floor_code(magnitude, form)
    if code is not None and form.magnitude_of(code) == magnitude:
        code -= 1
    return None if code is None or code < 0 else form.magnitude_of(code)


def _negated(value: Value | None) -> Value | None:
    return None if value is None else -value


def _encode_special(value: float, form: FloatFormat) -> int:
    if math.isnan(value):
        code = form.nan_code
    elif math.isinf(value):
        code = form.infinity_code if value > 0 or form.signed else None
        code = code if code is None or value > 0 else code | form.sign_mask
    else:
        code = form.sign_mask if form.has_negative_zero else None
    if code is None:
        raise FormatError(f"{form.name} has no {_shown(value)}.")
    return code


def _shown(value: Value | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return (
            "-0" if value == 0 else {math.inf: "infinity", -math.inf: "-infinity"}.get(value, "NaN")
        )
    try:
        near = float(value)
    except OverflowError:
        return shown(value, 17)
    return str(near) if Fraction(near) == value else shown(value, 17)
