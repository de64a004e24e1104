"""Blocks, one at a time: the oracle of block formats.

Scales that are powers of two follow from exact comparisons, except where the published rule itself
prescribes arithmetic in fp32; that is done here in NumPy's float32, operation by operation, as
written in the rule. Elements go through `round_value`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from floatscope.formats import BlockFormat, FloatFormat, ScaleRule
from floatscope.formats.values import octave_of
from floatscope.rounding.reference import round_value
from floatscope.rounding.rules import ScalarFormat, rules_for

FP32_MAX = np.float32(np.finfo(np.float32).max)
SCALE_RANGE = 127
"""An e8m0 scale is 2^s with |s| up to 127."""


class Scaling(NamedTuple):
    """How a block is scaled.

    Elements are values times `encode`, or divided by `scale` if that is None, and come back times
    `scale`.
    """

    scale: np.float32
    encode: np.float32 | None


def tensor_encode(amax: np.float32, form: BlockFormat) -> np.float32:
    """The factor that brings a tensor into NVFP4's range: Transformer Engine's S."""
    if not np.isfinite(amax) or amax == 0:
        return np.float32(1)
    top = np.float32(form.scale.max) * np.float32(form.element.max)
    with np.errstate(over="ignore"):
        factor = min(top / amax, FP32_MAX)
    return factor if factor > 0 else np.float32(1)


def scaling(amax: np.float32, form: BlockFormat, encode: np.float32 | None = None) -> Scaling:
    """The scaling of a block whose largest magnitude is `amax`; NaN if it has a NaN.

    Args:
        amax: largest magnitude, infinite or NaN if an element is.
        form: the block format.
        encode: NVFP4's factor of the whole tensor, from `tensor_encode`.
    """
    largest = np.float32(form.element.max)
    with np.errstate(all="ignore"):
        match form.rule:
            case ScaleRule.AMAX:
                if not np.isfinite(amax) or amax == 0:
                    return Scaling(np.float32(1), np.float32(1))
                factor = min(largest / amax, FP32_MAX)
                return Scaling(np.float32(1) / factor, factor)
            case ScaleRule.AMAX_DIVIDE:
                scale = amax / largest if np.isfinite(amax) else np.float32(np.nan)
                return Scaling(scale if scale != 0 else np.float32(1), None)
            case ScaleRule.NVFP4:
                assert encode is not None
                return _nvfp4(amax, form, encode)
    if not np.isfinite(amax):
        return Scaling(np.float32(np.nan), np.float32(np.nan))
    exponent = power_of_two(amax, form)
    return Scaling(np.float32(2.0**exponent), np.float32(2.0**-exponent))


def power_of_two(amax: np.float32, form: BlockFormat) -> int:
    """The exponent of a block's scale under the rules that give a power of two."""
    if amax == 0:
        return -SCALE_RANGE
    exact = Fraction(float(amax))
    top = form.element.max
    octave = octave_of(exact)
    match form.rule:
        case ScaleRule.FLOOR:
            exponent = octave - octave_of(top)
        case ScaleRule.CEIL:
            exponent = octave - octave_of(top) + (exact != Fraction(2) ** octave)
        case ScaleRule.EVEN:
            unit = Fraction(2) ** (octave - top_fraction_bits(form.element))
            rounded = math.floor(exact / unit + Fraction(1, 2)) * unit
            exponent = octave_of(rounded) - octave_of(top)
        case _:
            quotient = amax * (np.float32(1) / np.float32(top))
            exponent = _ceil_log2(quotient)
    return min(max(exponent, -SCALE_RANGE), SCALE_RANGE)


def top_fraction_bits(element: ScalarFormat) -> int:
    """Fraction bits of an element format in its topmost octave."""
    return element.fraction_bits if isinstance(element, FloatFormat) else element.width - 2


def _ceil_log2(value: np.float32) -> int:
    if value == 0:
        return -SCALE_RANGE
    exact = Fraction(float(value))
    octave = octave_of(exact)
    return octave + (exact != Fraction(2) ** octave)


def _nvfp4(amax: np.float32, form: BlockFormat, encode: np.float32) -> Scaling:
    """Transformer Engine's rule: block scale in e4m3 relative to the tensor's, then its inverse."""
    decode = np.float32(1) / encode
    wanted = amax * (encode * (np.float32(1) / np.float32(form.element.max)))
    if not np.isfinite(amax):
        return Scaling(np.float32(np.nan), np.float32(np.nan))
    stored = round_value(float(wanted), form.scale, overflow="saturate")
    scale = np.float32(stored) * decode
    factor = min(np.float32(1) / scale, FP32_MAX) if scale != 0 else FP32_MAX
    return Scaling(scale, factor)


def round_block(values: list[np.float32], form: BlockFormat, how: Scaling) -> list[np.float32]:
    """The values of one block after the cast, to nearest."""
    rules = rules_for(form.element)
    rounded = []
    for value in values:
        with np.errstate(all="ignore"):
            scaled = value / how.scale if how.encode is None else value * how.encode
        if np.isnan(scaled):
            rounded.append(np.float32(np.nan))
            continue
        element = round_value(float(scaled), form.element, rules, overflow="saturate")
        with np.errstate(all="ignore"):
            rounded.append(np.float32(element) * how.scale)
    return rounded
