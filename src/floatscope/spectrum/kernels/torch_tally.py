"""Tallies with Torch operations: the same numbers as the CPU kernel's, on any device.

One operation after another over tensors of integers; the CPU kernel says why each step is right.
Floating point serves only to find the leading bits of a whole number, which becomes a normal number
exactly, so no mode of the processor matters. Nothing is asked of a device on the way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope.spectrum.tally import OTHERS, SIGNIFICAND_BITS, Layout

TYPES = {32: (torch.int32, torch.float32), 64: (torch.int64, torch.float64)}
"""By width: the integers that hold the bits, and the floats."""


def add_tally(x: Tensor, layout: Layout, tally: Tensor) -> None:
    """Count the elements of `x` into `tally`.

    Args:
        x: one-dimensional, contiguous, not empty, of the layout's float dtype.
        layout: of the tally.
        tally: int64, `layout.size` numbers, on the device of `x`.
    """
    bits = x.view(TYPES[layout.width][0])
    a = bits & torch.iinfo(bits.dtype).max
    octave, fraction = _normalized(a, layout)
    cell = octave * layout.num_classes + _class_of(fraction, layout)
    has_cell = (a != 0) & (a < _infinity(layout))
    place = torch.where(has_cell, cell, _other(bits, a, layout))
    # On CUDA, scatter_add_ has a deterministic form for when Torch is asked for one, and sums of
    # integers are the same in any order anyway. torch.histc has none, and torch.bincount waits for
    # the device, to learn the largest place.
    tally.scatter_add_(0, place.long(), tally.new_ones(()).expand_as(x))
    at = torch.where(has_cell, octave + layout.num_cells, 0)
    square = torch.where(has_cell, _square_of(fraction, layout), 0)
    tally.scatter_add_(0, at.long(), square.long())
    tally[-1:] = torch.maximum(tally[-1:], torch.where(has_cell, a, 0).max())


def _bias(layout: Layout) -> int:
    return (1 << (layout.width - 2 - layout.fraction_bits)) - 1


def _infinity(layout: Layout) -> int:
    """Its bits."""
    return (2 * _bias(layout) + 1) << layout.fraction_bits


def _normalized(a: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Octaves of magnitudes, counted from the lowest, and their fractions.

    A subnormal number is a whole multiple of the smallest one, and that whole number as a float has
    the octave, counted from 1, and the fraction. What comes of zero, infinity and NaN is no answer.
    """
    bits, mask = layout.fraction_bits, (1 << layout.fraction_bits) - 1
    field, f = a >> bits, a & mask
    whole = _real_bits(f, layout)
    is_small = field == 0
    octave = torch.where(is_small, (whole >> bits) - _bias(layout), field + (bits - 1))
    return octave, torch.where(is_small, whole & mask, f)


def _class_of(f: Tensor, layout: Layout) -> Tensor:
    """Classes of fractions: halves of the octaves of the distance to the next octave, reversed."""
    bits = layout.fraction_bits
    twice = (2 << bits) - 2 * f
    below = (_real_bits(twice - 1, layout) >> (bits - 1)) | 1
    half = torch.minimum(below, _real_bits(twice, layout) >> (bits - 1))
    return torch.where(f == 0, 0, 2 * (_bias(layout) + bits + 1) - half)


def _square_of(f: Tensor, layout: Layout) -> Tensor:
    """Squares of significands that are rounded to `SIGNIFICAND_BITS`, half up."""
    drop = layout.fraction_bits + 1 - SIGNIFICAND_BITS
    m = ((f | 1 << layout.fraction_bits) + (1 << (drop - 1))) >> drop
    return m * m


def _other(bits: Tensor, a: Tensor, layout: Layout) -> Tensor:
    """Places of zeros, infinities and NaN: the first of `OTHERS`, in their order."""
    first = layout.size - len(OTHERS)
    place = torch.where(a == 0, first, first + 2) + (bits < 0).to(bits.dtype)
    return torch.where(a > _infinity(layout), first + 4, place)


def _real_bits(whole: Tensor, layout: Layout) -> Tensor:
    """The bits of whole numbers as floats that hold them exactly."""
    integer, real = TYPES[layout.width]
    return whole.to(real).view(integer)
