"""How products add up in each accumulator: one element of a result, in exact rationals.

Slow, and written to be read. `accumulate.py` says what each model is and where it comes from; tests
hold its kernels to this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from floatscope.errors import RecipeError, unknown
from floatscope.formats import FloatFormat
from floatscope.formats import format as format_called
from floatscope.formats.values import Value, octave_of
from floatscope.recipes.formats_of import ACCUMULATORS
from floatscope.rounding.reference import round_value

FRACTION_BITS = 13
"""Of an aligned product below the alignment, and of a kept sum below its own exponent."""
LOWEST_ALIGNMENT, LOWEST_SUM = -132, -126
LARGEST = Fraction(2) ** 128
PROMOTED_AFTER = 128
Emins = tuple[int, int]


def accumulated(
    a: Sequence[float], b: Sequence[float], accumulator: str, emins: Emins = (-149, -149)
) -> float:
    """The sum of the products a[k] * b[k].

    Args:
        a: values of fp32.
        b: as many.
        accumulator: one of `ACCUMULATORS` but fp32, whose order is Torch's own.
        emins: the smallest exponents of the operands.

    Returns:
        A value of fp32. What is not finite is NaN or an infinity.

    Raises:
        RecipeError: another accumulator.
    """
    match accumulator:
        case "hopper-fp8":
            return _aligned(a, b, 32, emins)
        case "hopper-fp8-promoted":
            return _promoted(a, b, emins)
        case "ada-fp8":
            return _aligned(a, b, 16, emins)
        case "fp16":
            return _in_half(a, b)
        case "kahan":
            return _kahan(a, b)
    raise RecipeError(unknown("accumulator", accumulator, ACCUMULATORS[1:]))


def _aligned(a: Sequence[float], b: Sequence[float], block: int, emins: Emins) -> float:
    """Block after block, from +0."""
    total = 0.0
    for k in range(0, len(a), block):
        total = _step(total, a[k : k + block], b[k : k + block], emins)
    return total


def _promoted(a: Sequence[float], b: Sequence[float], emins: Emins) -> float:
    """Sums of 128 products, added in fp32."""
    total = 0.0
    for k in range(0, len(a), PROMOTED_AFTER):
        part = slice(k, k + PROMOTED_AFTER)
        total = _plus(total, _aligned(a[part], b[part], 32, emins), "fp32")
    return total


def _step(total: float, a: Sequence[float], b: Sequence[float], emins: Emins) -> float:
    """One block of products and the sum so far."""
    terms = [x * y for x, y in zip(a, b, strict=True)] + [total]  # fp64 holds any product
    if not all(map(math.isfinite, terms)):
        return sum(term for term in terms if not math.isfinite(term))
    exponents = [
        max(_exponent(x), emins[0]) + max(_exponent(y), emins[1])
        for x, y in zip(a, b, strict=True)
        if x and y
    ]
    if total:
        exponents.append(_exponent(total))
    alignment = max([*exponents, LOWEST_ALIGNMENT])
    return _kept(sum(_truncated(Fraction(term), alignment) for term in terms))


def _kept(total: Fraction | int) -> float:
    """A sum as the accumulator holds it."""
    if total == 0:
        return 0.0
    kept = _truncated(Fraction(total), max(octave_of(abs(Fraction(total))), LOWEST_SUM))
    if abs(kept) >= LARGEST:
        return math.copysign(math.inf, kept)
    return float(kept)  # zero is +0


def _truncated(value: Fraction, exponent: int) -> Fraction:
    """The nearest multiple of 2^(exponent - 13) toward zero."""
    unit = Fraction(2) ** (exponent - FRACTION_BITS)
    return math.trunc(value / unit) * unit


def _exponent(value: float) -> int:
    return octave_of(abs(Fraction(value)))


def _in_half(a: Sequence[float], b: Sequence[float]) -> float:
    """One product at a time, each sum rounded to fp16 once."""
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total = _plus(total, x * y, "fp16")
    return total


def _kahan(a: Sequence[float], b: Sequence[float]) -> float:
    """Every operation rounded to fp32; what a sum has too much is taken off the next product."""
    total = excess = 0.0
    for x, y in zip(a, b, strict=True):
        product = _plus(x * y, -0.0, "fp32")  # -0 changes nothing
        wanted = _plus(product, -excess, "fp32")
        reached = _plus(total, wanted, "fp32")
        gained = _plus(reached, -total, "fp32")
        excess = _plus(gained, -wanted, "fp32") if math.isfinite(reached) else 0.0
        total = reached
    return total


def _plus(x: float, y: float, name: str) -> float:
    """The sum, rounded once to the format, to nearest even; the sign of zero as in IEEE 754."""
    if x == 0 or y == 0 or not math.isfinite(x + y):
        exact: Value = x + y
    else:
        exact = Fraction(x) + Fraction(y)
    form = format_called(name)
    assert isinstance(form, FloatFormat)
    return float(round_value(exact, form))
