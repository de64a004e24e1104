"""Rows of demonstration 3: what became of every gradient element."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from floatscope.lab.lecture.records import Counted, GradientBatch, ScaleRow
from floatscope.spectrum.spectrum import Spectrum

NORMAL, SMALLEST, TO_ZERO = 2.0**-14, 2.0**-24, 2.0**-25
"""fp16's smallest normal and smallest value, and the largest magnitude that it makes zero."""


def scale_row(
    exponent: int, real: Tensor, reference: Tensor, rounded: Tensor, spectrum: Spectrum
) -> ScaleRow:
    """What a pass at 2^exponent gave, and what the fp32 gradient's spectrum predicted.

    Args:
        exponent: of the scale.
        real: the unscaled gradient in fp16.
        reference: the gradient in fp32, and `rounded` at the weights rounded to fp16.
        rounded: see there.
        spectrum: of `reference`.
    """
    is_there, scale = reference != 0, 2.0**exponent
    of = int(is_there.sum())

    def counted(which: Tensor) -> Counted:
        return Counted(count=int(which.sum()), of=real.numel())

    return ScaleRow(
        exponent=exponent,
        flushed=Counted(count=int(((real == 0) & is_there).sum()), of=of),
        infinite=counted(real.isinf()),
        nan=counted(real.isnan()),
        predicted_flushed=Counted(count=spectrum.underflow("fp16", scale).count, of=of),
        predicted_infinite=Counted(count=spectrum.overflow("fp16", scale).count, of=real.numel()),
        error=_error(real, reference),
        median_error=_median_error(real, reference),
        error_rounded=_error(real, rounded),
        median_error_rounded=_median_error(real, rounded),
        sign_flips=counted(real.sign() * reference.sign() < 0),
    )


def batch_record(
    size: int, loss: float, reference: Tensor, spectrum: Spectrum, rows: Sequence[ScaleRow]
) -> GradientBatch:
    """A batch's own numbers, and its rows."""
    magnitude = reference.abs()
    some = magnitude[magnitude > 0]

    def counted(which: Tensor) -> Counted:
        return Counted(count=int(which.sum()), of=some.numel())

    return GradientBatch(
        batch_size=size,
        loss=loss,
        median=magnitude.median().item(),
        below_normal=counted(some < NORMAL),
        below_smallest=counted(some < SMALLEST),
        to_zero=counted(some <= TO_ZERO),
        octaves=tuple(spectrum.octave_counts().items()),
        scales=tuple(rows),
    )


def _error(real: Tensor, reference: Tensor) -> float:
    difference = real.double() - reference.double()
    return (difference.norm() / reference.double().norm()).item()


def _median_error(real: Tensor, reference: Tensor) -> float:
    is_there = reference != 0
    relative = ((real.double() - reference.double()).abs() / reference.double().abs())[is_there]
    return relative.nan_to_num(nan=torch.inf, posinf=torch.inf).median().item()
