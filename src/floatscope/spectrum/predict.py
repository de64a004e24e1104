"""What a cast would do, read from counts: for one power-of-two scale, or for all at once.

Everything here is of casts to nearest, ties to even, of the exactly scaled value, and of its
magnitude. Shares are of the finite non-zero elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from floatscope.errors import FormatError
from floatscope.formats import BlockFormat, FloatFormat, Format, IntFormat
from floatscope.formats import format as format_called
from floatscope.spectrum.cells import STRIDE, edges_of
from floatscope.spectrum.tally import SIGNIFICAND_BITS

if TYPE_CHECKING:
    from floatscope.spectrum.spectrum import Spectrum

SCALES = range(-126, 128)
"""Exponents of the scales that fp32 holds as normal numbers."""

FRACTION = SIGNIFICAND_BITS - 1
MEAN_SIGNIFICAND = 1.5

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """How many elements, and out of how many."""

    count: int
    of: int
    """Finite non-zero elements."""

    @property
    def fraction(self) -> float:
        """The share; NaN if there is no such element."""
        return self.count / self.of if self.of else math.nan


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a cast to one format does at many scales; arrays of int64, one number a scale."""

    form: FloatFormat
    exponents: Counts
    """The k of the scales 2^k."""
    underflow: Counts
    """Non-zero elements that become zero."""
    subnormal: Counts
    """Those that become subnormal, and not zero."""
    overflow: Counts
    """Finite elements that round beyond the largest value."""
    of: int
    """Finite non-zero elements."""


@dataclass(frozen=True, kw_only=True)
class ScaleWindow:
    """The scales 2^k, k_min <= k <= k_max, at which a tensor fits a format; or why none does."""

    k_min: int | None
    k_max: int | None
    why: str
    """Empty if there are such scales."""

    def __bool__(self) -> bool:
        return not self.why

    @property
    def width(self) -> int:
        """Octaves that the tensor may still grow or shrink by; 0 if there is no such scale."""
        if self.k_min is None or self.k_max is None or self.why:
            return 0
        return self.k_max - self.k_min


def float_format(form: Format | str) -> FloatFormat:
    """The float format of that name; of Torch's dtypes too.

    Raises:
        FormatError: unknown, or not a float format.
    """
    if not isinstance(form, (FloatFormat, IntFormat, BlockFormat)):
        form = format_called(str(form).removeprefix("torch."))
    if isinstance(form, FloatFormat):
        return form
    what = (
        "its block scales depend on the neighbors"
        if isinstance(form, BlockFormat)
        else ("its values lie on an even grid with two different ends")
    )
    raise FormatError(
        f"a spectrum predicts casts to float formats; {form.name} is none, and {what}. Measure it: "
        "round_to and block_round count with receipt=."
    )


def exponent_of(scale: float) -> int:
    """The k of a scale 2^k.

    Raises:
        FormatError: the scale is no power of two.
    """
    try:
        mantissa, exponent = math.frexp(scale)
    except (OverflowError, TypeError):  # a whole number beyond fp64; no number
        mantissa, exponent = 0.0, 0
    if mantissa != 0.5:
        raise FormatError(
            f"a spectrum knows what scales of 2^k do, and {scale!r} is none: other factors change "
            "significands. Multiply the tensor and measure it again."
        )
    return exponent - 1


def sweep(spectrum: Spectrum, form: FloatFormat, exponents: Counts) -> Sweep:
    """Counts at every scale."""
    zero, normal, over = edges_of(form)
    shift = STRIDE * exponents
    below = spectrum.count_below
    nothing = np.zeros_like(exponents)
    flushed = nothing if zero is None else below(zero - shift)
    return Sweep(
        form=form,
        exponents=exponents,
        underflow=flushed,
        subnormal=nothing if normal is None else below(normal - shift) - flushed,
        overflow=spectrum.num_finite_nonzero - below(over - shift),
        of=spectrum.num_finite_nonzero,
    )


def safe_scales(spectrum: Spectrum, form: FloatFormat, tolerance: float) -> ScaleWindow:
    """See `Spectrum.safe_scales`."""
    if not 0 <= tolerance <= 1:
        raise FormatError(f"tolerance is a share between 0 and 1, not {tolerance}.")
    num_infinite = spectrum.positive_infinities + spectrum.negative_infinities
    if num_infinite or spectrum.nans:
        return _none(f"{num_infinite} elements are infinite and {spectrum.nans} NaN at any scale")
    every = sweep(spectrum, form, np.arange(SCALES.start, SCALES.stop))
    fits = every.exponents[every.overflow == 0]
    keeps = every.exponents[every.underflow <= tolerance * every.of]
    k_max = int(fits[-1]) if fits.size else None
    k_min = int(keeps[0]) if keeps.size else None
    if k_max is None:
        return _none("its largest element overflows at every scale that fp32 holds")
    if k_min is None:
        return _none(f"more than {tolerance:g} of it underflows at every scale that fp32 holds")
    if k_min > k_max:
        lost = Share(int(every.underflow[k_max - SCALES.start]), every.of).fraction
        why = (
            f"from 2^{k_max + 1} on it overflows {form.name}, and up to 2^{k_min - 1} more than "
            f"{tolerance:g} of it underflows ({lost:.3g} at 2^{k_max})"
        )
        return ScaleWindow(k_min=k_min, k_max=k_max, why=why)
    return ScaleWindow(k_min=k_min, k_max=k_max, why="")


def _none(why: str) -> ScaleWindow:
    return ScaleWindow(k_min=None, k_max=None, why=why)


def rounding_error(spectrum: Spectrum, form: FloatFormat, exponent: int) -> float:
    """See `Spectrum.rounding_error`."""
    zero, _, over = edges_of(form)
    lost, energy = 0.0, 0.0
    top = max(spectrum.squares, default=0)  # squares are counted in units of 4^top
    for octave, count in spectrum.octave_counts().items():
        start = STRIDE * (octave + exponent)
        inside = _part(spectrum, start, start + STRIDE, -math.inf, over, exponent)
        flushed = _part(spectrum, start, start + STRIDE, -math.inf, zero, exponent)
        square = math.ldexp(spectrum.squares[octave] / count, 2 * (octave - top - FRACTION))
        energy += inside * square
        lost += flushed * square
        lost += (inside - flushed) * _mean_square_error(spectrum, form, octave, exponent, top)
    return math.sqrt(lost / energy) if energy else math.nan


def _mean_square_error(
    spectrum: Spectrum, form: FloatFormat, octave: int, exponent: int, top: int
) -> float:
    """Of an element of an octave that does not become zero, in units of 4^top."""
    missing = form.emin - octave - exponent
    if missing > 0 and not form.zero:  # rounds up to the smallest value
        distance = 2.0**missing - MEAN_SIGNIFICAND
        return math.ldexp(distance * distance, 2 * (octave - top))
    kept = form.fraction_bits - max(missing, 0)
    held = spectrum.fraction_bits
    if spectrum.finest is not None:
        held = min(held, octave - spectrum.finest)
    dropped = held - kept
    if dropped <= 0:
        return 0.0
    return math.ldexp((1 + 2 * 4.0**-dropped) / 12, 2 * (octave - kept - top))


def _part(
    spectrum: Spectrum, start: int, stop: int, low: float, high: float | None, exponent: int
) -> int:
    """Elements of scaled keys [start, stop) that lie in [low, high) too; none without high."""
    if high is None:
        return 0
    first, last = max(start, low), min(stop, high)
    if last <= first:
        return 0
    ends = np.array([first, last], np.int64) - STRIDE * exponent
    below = spectrum.count_below(ends)
    return int(below[1] - below[0])
