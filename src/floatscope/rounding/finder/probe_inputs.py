"""Inputs on which two casts to a format would show that they differ.

The values of the format, the ties between them, the thresholds at both ends, and the fp32 neighbors
of all these; for formats of more than 8 bits a selection of the values that has both ends of every
octave.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from fractions import Fraction
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.formats import FloatFormat
from floatscope.formats.values import largest_code
from floatscope.rounding import denormals
from floatscope.rounding.rules import ScalarFormat

SEED = 0
RANDOM_CODES = 64
FP32_TINY = (2.0**-149, 2.0**-148, 2.0**-133, 2.0**-127, 2.0**-126 - 2.0**-149, 2.0**-126)
"""The smallest fp32 value, other subnormal ones, the largest of them and the smallest normal."""
FP32_MAX = float(np.finfo(np.float32).max)

Floats = NDArray[np.float32]


def scalar_probes(form: ScalarFormat) -> Tensor:
    """The inputs for a float or integer format, both signs of each: fp32, one dimension."""
    values = finite_magnitudes(form)
    ties = [(below + above) / 2 for below, above in itertools.pairwise(values)]
    with denormals.kept():
        near = with_neighbors(as_fp32([*values, *ties, *_ends(form)]))
        every = np.union1d(near, np.array([0, *FP32_TINY, FP32_MAX], np.float32))
        magnitudes = np.concatenate([every, np.array([np.inf, np.nan], np.float32)])
        return torch.from_numpy(np.concatenate([magnitudes, -magnitudes]))


@cache
def finite_magnitudes(form: ScalarFormat) -> tuple[Fraction, ...]:
    """The values of a format that are not negative, in order: all up to 8 bits, else a selection.

    The selection has the first, middle and last values of every octave, and random ones.
    """
    if isinstance(form, FloatFormat):
        largest, octave = largest_code(form), 1 << form.fraction_bits
        starts = {1 << k for k in range(form.fraction_bits)}
        starts.update(range(0, largest + 2, max(octave // 2, 1)))
        return tuple(form.magnitude_of(code) for code in _selected(form, largest, starts))
    largest = (1 << (form.width - 1)) - 1
    starts = {1 << k for k in range(form.width)}
    return tuple(steps * form.step for steps in _selected(form, largest, starts))


def _selected(form: ScalarFormat, largest: int, starts: Iterable[int]) -> Iterable[int]:
    """Numbers from 0 to `largest`: every one, or random ones and those around the starts."""
    if form.width <= 8:
        return range(largest + 1)
    drawn = random.Random(SEED)
    centers = {0, *starts, *(drawn.randrange(largest) for _ in range(RANDOM_CODES))}
    chosen = {center + d for center in centers for d in (-2, -1, 0, 1, 2)}
    return sorted(number for number in chosen if 0 <= number <= largest)


def with_neighbors(magnitudes: Floats) -> Floats:
    """The magnitudes and the fp32 numbers just below and above them, as far as these are finite."""
    with np.errstate(over="ignore", under="ignore"):
        below = np.nextafter(magnitudes, np.float32(0))
        above = np.nextafter(magnitudes, np.float32(np.inf))
    every = np.unique(np.concatenate([magnitudes, below, above]))
    return every[np.isfinite(every)]


def as_fp32(values: Iterable[Fraction]) -> Floats:
    """The fp32 numbers nearest to values, without those beyond its largest."""
    with np.errstate(under="ignore"):
        return np.array([float(v) for v in values if v <= FP32_MAX], np.float64).astype(np.float32)


def _ends(form: ScalarFormat) -> list[Fraction]:
    """Thresholds at both ends of a format, and points beyond them."""
    if not isinstance(form, FloatFormat):
        return [form.max + form.step * k / 2 for k in (1, 2, 3)] + [2 * form.max, 4 * form.max]
    top = [form.overflow_threshold, 2 * form.overflow_threshold - form.max]
    bottom = [form.smallest * k / 4 for k in (1, 2, 3)]
    return [*top, 2 * form.max, 4 * form.max, *bottom, form.smallest_normal / 2]
