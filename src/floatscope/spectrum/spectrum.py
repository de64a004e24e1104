"""`Spectrum`: a tensor measured once, for every format and every power-of-two scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.formats import Format
from floatscope.spectrum import predict
from floatscope.spectrum.cells import STRIDE
from floatscope.spectrum.predict import Counts, ScaleWindow, Share, Sweep, float_format
from floatscope.spectrum.tally import OTHERS, SIGNIFICAND_BITS, Layout


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """Counts of a tensor's elements by octave and class (see `cells.py`).

    Spectra of parts add up to the spectrum of the whole, exactly and in any order. Counts are
    exact; what is derived from `squares` is marked ≈ where it is printed.
    """

    keys: NDArray[np.int32]
    """Keys of the cells that hold elements, ascending."""
    counts: Counts
    """Elements in each of these cells, at least one."""
    squares: dict[int, int]
    """By octave e, the sum of squares of its elements' significands, rounded to 14 bits, as a
    multiple of 2^-26: sum(x^2) ≈ squares[e] * 2^(2 e - 26)."""
    positive_zeros: int = 0
    negative_zeros: int = 0
    positive_infinities: int = 0
    negative_infinities: int = 0
    nans: int = 0
    subnormals: int = 0
    """Elements that were subnormal in the dtype they were measured in. They have cells too."""
    amax: float = 0.0
    """The largest finite magnitude, exactly."""
    fraction_bits: int = 0
    """Fraction bits of the measured dtype; of the finest, in a sum."""
    finest: int | None = None
    """Exponent of its smallest positive value; of the finest, in a sum. None if unknown."""

    @staticmethod
    def of(x: Any) -> Spectrum:
        """Measure a tensor or a NumPy array.

        Args:
            x: any floating dtype (fp64, fp32, fp16, bf16, fp8), device, shape, stride and size.
                What is not fp64 is measured as it is; nothing is rounded on the way. A distributed
                tensor (DTensor) is measured in its local part.

        Raises:
            FormatError: not a floating-point tensor, or one without memory of its own.
        """
        from floatscope.spectrum.measure import spectrum_of

        return spectrum_of(x)

    @staticmethod
    def sum(spectra: Iterable[Spectrum]) -> Spectrum:
        """The spectrum of all together; of nothing, the empty spectrum."""
        total = Spectrum.empty()
        for spectrum in spectra:
            total += spectrum
        return total

    @staticmethod
    def empty() -> Spectrum:
        """The spectrum of no elements."""
        return Spectrum(keys=np.empty(0, np.int32), counts=np.empty(0, np.int64), squares={})

    # Sizes

    @property
    def num_finite_nonzero(self) -> int:
        """What shares are of."""
        return int(self.counts.sum())

    @property
    def zeros(self) -> int:
        return self.positive_zeros + self.negative_zeros

    @property
    def num_elements(self) -> int:
        infinities = self.positive_infinities + self.negative_infinities
        return self.num_finite_nonzero + self.zeros + infinities + self.nans

    @property
    def octaves(self) -> range:
        """From the octave of the smallest magnitude to that of the largest; empty without any."""
        if not self.keys.size:
            return range(0)
        return range(int(self.keys[0]) // STRIDE, int(self.keys[-1]) // STRIDE + 1)

    @property
    def sum_of_squares(self) -> float:
        """≈ The sum of squares of the finite elements; each is within 2^-13 of its own.

        Infinite beyond fp64.
        """
        relative, top = self._relative_squares()
        return ldexp(relative, 2 * top)

    @property
    def rms(self) -> float:
        """≈ Root mean square of the finite elements, zeros included; NaN if there is none."""
        size = self.num_finite_nonzero + self.zeros
        relative, top = self._relative_squares()
        return ldexp(math.sqrt(relative / size), top) if size else math.nan

    def _relative_squares(self) -> tuple[float, int]:
        """The sum of squares as a multiple of 4^top, top being the highest octave."""
        top = max(self.squares, default=0)
        shift = 2 * (SIGNIFICAND_BITS - 1)
        parts = (math.ldexp(n, 2 * (e - top) - shift) for e, n in self.squares.items())
        return math.fsum(parts), top

    # Algebra

    def __add__(self, other: Spectrum) -> Spectrum:
        if not isinstance(other, Spectrum):
            return NotImplemented
        keys, where = np.unique(np.concatenate((self.keys, other.keys)), return_inverse=True)
        counts = np.zeros(keys.size, np.int64)
        np.add.at(counts, where, np.concatenate((self.counts, other.counts)))
        both = self.squares.keys() | other.squares.keys()
        squares = {e: self.squares.get(e, 0) + other.squares.get(e, 0) for e in sorted(both)}
        sums = {name: getattr(self, name) + getattr(other, name) for name in COUNTED}
        return Spectrum(
            keys=keys,
            counts=counts,
            squares=squares,
            **sums,
            amax=max(self.amax, other.amax),
            fraction_bits=max(self.fraction_bits, other.fraction_bits),
            finest=min((f for f in (self.finest, other.finest) if f is not None), default=None),
        )

    def __radd__(self, other: object) -> Spectrum:
        """What the built-in `sum` begins with, 0, is nothing."""
        return self if other == 0 else NotImplemented

    def scaled(self, exponent: int) -> Spectrum:
        """The spectrum of 2^exponent * x, were its exponents unlimited.

        `subnormals` stays what was measured; `amax` becomes infinite or loses bits where fp64 ends.
        """
        return Spectrum(
            keys=self.keys + np.int32(STRIDE * exponent),
            counts=self.counts,
            squares={e + exponent: n for e, n in self.squares.items()},
            **{name: getattr(self, name) for name in COUNTED},
            amax=ldexp(self.amax, exponent),
            fraction_bits=self.fraction_bits,
            finest=None if self.finest is None else self.finest + exponent,
        )

    def __eq__(self, other: object) -> bool:
        """Whether all is equal, but for the dtype that was measured."""
        if not isinstance(other, Spectrum):
            return NotImplemented
        return (
            np.array_equal(self.keys, other.keys)
            and np.array_equal(self.counts, other.counts)
            and self.squares == other.squares
            and self.amax == other.amax
            and all(getattr(self, name) == getattr(other, name) for name in COUNTED)
        )

    __hash__ = None  # type: ignore[assignment]

    def all_reduce(self, group: Any = None) -> Spectrum:
        """The sum of the spectra of all ranks of torch.distributed, exactly, on every rank.

        Every rank of the group calls it. See `reduce.py` for the group and for errors.
        """
        from floatscope.spectrum.reduce import all_reduce

        return all_reduce(self, group)

    # Storage

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, lossless and small (see `storage.py`).

        Raises:
            SpectrumError: a spectrum made by hand that breaks a rule.
        """
        from floatscope.spectrum import storage

        return storage.to_dict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Spectrum:
        """The spectrum that `to_dict` was called on.

        Raises:
            SpectrumError: a value is missing, altered or cut off, or the schema is newer.
        """
        from floatscope.spectrum import storage

        return storage.from_dict(data)

    def to_json(self) -> str:
        """`to_dict` as one line of JSON; raises what it raises."""
        from floatscope.spectrum import storage

        return storage.to_json(self)

    @staticmethod
    def from_json(text: str | bytes) -> Spectrum:
        """The spectrum that `to_json` was called on; otherwise as `from_dict`."""
        from floatscope.spectrum import storage

        return storage.from_json(text)

    # Predictions

    def count_below(self, keys: NDArray[np.integer] | int) -> Any:
        """Finite non-zero elements in cells of smaller key; an array for an array."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.counts)))
        return running[np.searchsorted(self.keys, keys)]

    def below(self, exponent: int) -> Share:
        """Elements of magnitude below 2^exponent."""
        return self._share(self.count_below(STRIDE * exponent))

    def underflow(self, form: Format | str, scale: float = 1.0) -> Share:
        """Elements that a cast of scale * x to a float format turns into zero.

        Rounded to nearest, ties to even, the scaled value not rounded before.

        Raises:
            FormatError: no float format, or a scale that is no power of two.
        """
        return self._share(self._at(form, scale).underflow[0])

    def subnormal(self, form: Format | str, scale: float = 1.0) -> Share:
        """Elements that become subnormal (and not zero); otherwise as `underflow`."""
        return self._share(self._at(form, scale).subnormal[0])

    def overflow(self, form: Format | str, scale: float = 1.0) -> Share:
        """Elements that round beyond the largest value; otherwise as `underflow`."""
        return self._share(self._at(form, scale).overflow[0])

    def sweep(self, form: Format | str, exponents: Iterable[int] = predict.SCALES) -> Sweep:
        """All three at every scale 2^k, k from `exponents`; by default all that fp32 holds."""
        return predict.sweep(self, float_format(form), np.array([*exponents], np.int64))

    def safe_scales(self, form: Format | str, tolerance: float = 0.0) -> ScaleWindow:
        """The power-of-two scales at which nothing overflows and little underflows.

        Args:
            form: a float format.
            tolerance: the share of the finite non-zero elements that may become zero.

        Returns:
            The window of k in 2^k, among the scales that fp32 holds as normal numbers; without
            one, false, with the reason in words.
        """
        return predict.safe_scales(self, float_format(form), tolerance)

    def rounding_error(self, form: Format | str, scale: float = 1.0) -> float:
        """≈ Expected relative RMS error of a cast: sqrt(sum(error^2) / sum(x^2)).

        Over the elements that do not overflow; NaN without any. Expected, because within an ulp
        values are taken as spread evenly on the measured dtype's grid; what underflows counts
        whole.
        """
        return predict.rounding_error(self, float_format(form), predict.exponent_of(scale))

    def octave_counts(self) -> dict[int, int]:
        """Finite non-zero elements by octave, ascending; octaves that hold none are left out."""
        octaves, first = np.unique(self.keys // STRIDE, return_index=True)
        counts = np.add.reduceat(self.counts, first) if first.size else np.empty(0, np.int64)
        return dict(zip(octaves.tolist(), counts.tolist(), strict=True))

    def _at(self, form: Format | str, scale: float) -> Sweep:
        exponent = predict.exponent_of(scale)
        return predict.sweep(self, float_format(form), np.array([exponent], np.int64))

    def _share(self, count: Any) -> Share:
        return Share(int(count), self.num_finite_nonzero)

    def __repr__(self) -> str:
        octaves = self.octaves
        span = f"2^{octaves[0]} ... 2^{octaves[-1] + 1}" if octaves else "nothing"
        return f"Spectrum({self.num_elements} elements, {self.zeros} zeros, {span})"


def ldexp(x: float, exponent: int) -> float:
    """The product x * 2^exponent; infinite beyond fp64."""
    try:
        return math.ldexp(x, exponent)
    except OverflowError:
        return math.inf


COUNTED = (*OTHERS[:-1], "subnormals")
"""Fields that add up."""


def from_tally(
    tally: NDArray[np.int64], layout: Layout, *, fraction_bits: int, smallest_normal: int
) -> Spectrum:
    """The spectrum of a tally.

    Args:
        tally: what a kernel counted.
        layout: of the tally.
        fraction_bits: of the dtype that was measured.
        smallest_normal: exponent of its smallest normal value.
    """
    held = tally[: layout.num_cells]
    where = np.flatnonzero(held)
    octaves, classes = np.divmod(where, layout.num_classes)
    keys = (STRIDE * (octaves + layout.lowest_octave) + classes).astype(np.int32)
    counts = held[where]
    squares = tally[layout.num_cells : layout.num_cells + layout.num_octaves]
    others = dict(zip(OTHERS, tally[-len(OTHERS) :].tolist(), strict=True))
    bits = np.uint32 if layout.width == 32 else np.uint64
    value = np.array([others.pop("amax")], np.uint64).astype(bits)
    amax = float(value.view(np.float32 if layout.width == 32 else np.float64)[0])
    return Spectrum(
        keys=keys,
        counts=counts,
        squares={int(e) + layout.lowest_octave: int(squares[e]) for e in np.flatnonzero(squares)},
        **others,
        subnormals=int(counts[keys < STRIDE * smallest_normal].sum()),
        amax=amax,
        fraction_bits=fraction_bits,
        finest=smallest_normal - fraction_bits,
    )
