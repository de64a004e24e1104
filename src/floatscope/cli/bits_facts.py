"""What a format makes of one number, as facts in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from floatscope.errors import FormatError
from floatscope.formats import IntFormat, encode, neighbors, ulp
from floatscope.formats.show import exact_decimal, shown
from floatscope.formats.values import Value
from floatscope.rounding import Rules, round_value
from floatscope.rounding.reference import RANDOM_BITS
from floatscope.rounding.rules import ScalarFormat, resolve

NUM_DRAWS = 1 << RANDOM_BITS
_SMALL = Fraction(1, 1 << 1000)
MAX_BITS = 2048
"""Of a numerator or denominator that is written out; those of fp64 have 1075 at most."""


def facts_of(
    exact: Value,
    form: ScalarFormat,
    rules: str,
    rounding: str | None,
    overflow: str | None,
    given: int | None = None,
) -> dict[str, Any]:
    """Code, bits, stored value, error and neighbors of a number in a format.

    `given` is the code in this format that the number was read from: a NaN keeps it.
    `decided by` names the rules where they made the value what it is. Stochastic rounding gives a
    list of outcomes; what the format cannot do is `refused`.
    """
    facts: dict[str, Any] = {"format": form.name, "rules": rules}
    try:
        chosen = resolve(form, rules, rounding=rounding, overflow=overflow)
        facts |= {"rounding": chosen.rounding, "overflow": chosen.overflow}
        if overflow is None and not _is_inside(exact, form):
            facts["decided by"] = rules
        if chosen.rounding == "stochastic":
            outcomes = [
                {"probability": shown(probability)} | _stored(exact, value, form, given)
                for value, probability in outcomes_of(exact, form, chosen)
            ]
            return facts | {"outcomes": outcomes}
        return facts | _stored(exact, round_value(exact, form, chosen), form, given)
    except FormatError as error:
        return facts | {"refused": str(error)}


def outcomes_of(exact: Value, form: ScalarFormat, rules: Rules) -> Iterator[tuple[Value, Fraction]]:
    """What stochastic rounding may give, the value nearer zero first, and how probable it is."""
    inner, outer = (round_value(exact, form, rules, random=r) for r in (NUM_DRAWS - 1, 0))
    if repr(inner) == repr(outer):
        yield inner, Fraction(1)
        return
    rest = abs(Fraction(exact)) / _step(exact, form) % 1
    probability = Fraction(int(rest * NUM_DRAWS), NUM_DRAWS)
    yield inner, 1 - probability
    yield outer, probability


def _is_inside(exact: Value, form: ScalarFormat) -> bool:
    """Whether a number lies between the lowest value of a format and the largest."""
    if isinstance(form, IntFormat):
        return form.min <= exact <= form.max
    return (-form.max if form.signed else form.smallest) <= exact <= form.max


def _stored(exact: Value, stored: Value, form: ScalarFormat, given: int | None) -> dict[str, str]:
    code = _code(exact, stored, form, given)
    facts = {
        "code": f"0x{code:0{(form.width + 3) // 4}x}",
        "bits": format(code, f"0{form.width}b"),
        "stored": shown(stored),
        "exactly": _exactly(stored, form),
    }
    if _is_finite(stored) and _is_finite(exact):
        facts |= _error(exact, stored)
        facts["ulp"] = shown(_step(stored, form))
    if stored == stored:  # not NaN
        below, above = _neighbors(stored, form)
        facts |= {"below": _told_apart(below, form), "above": _told_apart(above, form)}
    return facts


def _code(exact: Value, stored: Value, form: ScalarFormat, given: int | None) -> int:
    """The code of the stored value; that of a NaN is the one given, or has the number's sign."""
    if isinstance(form, IntFormat):
        return form.encode(Fraction(stored))
    if stored == stored:
        return encode(stored, form)
    if given is not None and exact != exact:
        return given
    is_negative = exact < 0 if exact == exact else math.copysign(1, exact) < 0
    return encode(stored, form) | (form.sign_mask if is_negative else 0)


def _error(exact: Value, stored: Value) -> dict[str, str]:
    error = Fraction(stored) - Fraction(exact)
    relative = abs(error / Fraction(exact)) if exact else Fraction(0)
    text = (
        f"{float(relative):.3g}"
        if _SMALL < relative < 2**1023 or not relative
        else shown(relative, 3)
    )
    return {"error": shown(error), "relative error": text}


def _is_finite(value: Value) -> bool:
    return isinstance(value, Fraction) or value == 0  # a finite float is -0


def _step(value: Value, form: ScalarFormat) -> Fraction:
    """The distance between neighbors around a value."""
    return form.step if isinstance(form, IntFormat) else ulp(value, form)


def _neighbors(stored: Value, form: ScalarFormat) -> tuple[Value | None, Value | None]:
    if not isinstance(form, IntFormat):
        return neighbors(stored, form)
    below, above = stored - form.step, stored + form.step
    return below if below >= form.min else None, above if above <= form.max else None


def _told_apart(value: Value | None, form: ScalarFormat) -> str:
    """A value with enough digits to tell it from its neighbors in the format."""
    if isinstance(form, IntFormat):
        return shown(value)
    return shown(value, 2 + math.ceil(form.precision * math.log10(2)))


def _exactly(value: Value, form: ScalarFormat) -> str:
    """All decimal digits, or a quotient where they are many; rounded where that is long too."""
    if not isinstance(value, Fraction):
        return shown(value)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        return _told_apart(value, form)
    digits = exact_decimal(value)
    return digits if len(digits) <= 60 else f"{value.numerator}/{value.denominator}"
