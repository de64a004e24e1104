"""Why two casts differ on an input, as far as the input and the two results tell."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import torch
from torch import Tensor

from floatscope.formats import FloatFormat
from floatscope.rounding.rules import ScalarFormat

Kind = Literal[
    "tie", "subnormal", "overflow", "infinity", "nan", "sign of zero", "zero or negative",
    "other rounding", "block scale", "division", "last bits", "raises",
]  # fmt: skip
"""Classes of disagreement.

* tie: the input lies halfway between two values, and each cast takes another of them.
* subnormal: it is below the smallest normal value.
* overflow: it is beyond the largest value.
* infinity, nan: it is that, or is in a block with one.
* sign of zero: both results are zeros.
* zero or negative: the format has no zero, or no sign.
* other rounding: none of these; a value in range, rounded in two ways.
* block scale: the casts gave the block different scales, or one of them a wrong one.
* division: same scale, but one cast multiplied by its reciprocal instead of dividing.
* last bits: the block's results are equal but for the last bits of fp32, as scales multiplied in
  another order give them.
* raises: one of the two raises an error on an ordinary input.
"""
KINDS: tuple[Kind, ...] = get_args(Kind)
_FP64_MAX = Fraction(sys.float_info.max)


def code_of(kind: Kind) -> int:
    """The place of a class among `KINDS`, as tensors of classes hold it."""
    return KINDS.index(kind)


def differ(a: Tensor, b: Tensor) -> Tensor:
    """Where two tensors differ: NaNs are alike, zeros of different sign are not."""
    same = (a == b) & (a.signbit() == b.signbit())
    return ~(same | (a.isnan() & b.isnan()))


@dataclass(frozen=True)
class Between:
    """The values of a format on either side of inputs, were there no largest value."""

    low: Tensor
    """The largest magnitude that is at most the input's."""
    unit: Tensor
    """The distance to the next."""
    is_tie: Tensor
    """Whether the input lies in the middle."""


def between(x: Tensor, form: ScalarFormat) -> Between:
    """Where finite fp64 inputs, as exact as fp32 numbers, lie among the values of a format."""
    if isinstance(form, FloatFormat):
        exponent = torch.frexp(x).exponent.long() - 1
        unit = power_of_two(exponent.clamp(min=max(form.emin, -1022)) - form.fraction_bits)
    else:
        unit = torch.full_like(x, float(form.step))
    steps = x.abs() / unit
    whole = steps.floor()
    return Between(low=whole * unit, unit=unit, is_tie=steps - whole == 0.5)


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in fp64, made from bits, for exponents of normal numbers."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def scalar_kinds(x: Tensor, a: Tensor, b: Tensor, raised: Tensor, form: ScalarFormat) -> Tensor:
    """The class of every input, by its place among `KINDS`, given that the results differ.

    Args:
        x: inputs, in fp64.
        a: results of one cast, in fp64.
        b: those of the other.
        raised: where one of them raised an error instead.
        form: the format.
    """
    around = between(x.nan_to_num(0, 0, 0), form)
    low, high = around.low, around.low + around.unit
    halves = around.is_tie & ~raised
    for result in (a.abs(), b.abs()):
        halves = halves & ((result == low) | (result == high))
    kinds = torch.full(x.shape, code_of("other rounding"), dtype=torch.int8)
    mark(kinds, "raises", raised)
    if isinstance(form, FloatFormat):
        mark(kinds, "subnormal", ~raised & (x.abs() < float(form.smallest_normal)))
    mark(kinds, "tie", halves)
    mark(kinds, "overflow", x.abs() > float(min(form.max, _FP64_MAX)))
    mark(kinds, "sign of zero", (a == 0) & (b == 0))
    if isinstance(form, FloatFormat):
        mark(kinds, "zero or negative", (x == 0) & (not form.zero) | (x < 0) & (not form.signed))
    mark(kinds, "infinity", x.isinf())
    mark(kinds, "nan", x.isnan())
    return kinds


def mark(kinds: Tensor, kind: Kind, where: Tensor) -> None:
    """Set classes."""
    kinds[where] = code_of(kind)
