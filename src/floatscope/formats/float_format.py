"""A floating-point format as data: which values exist, and which code stands for which.

A code is an unsigned integer of `width` bits: sign, biased exponent, fraction, from the top. With
biased exponent e and fraction f of p bits its magnitude is

    e > 0:  2^(e - bias) * (1 + f / 2^p)        normal
    e = 0:  2^(1 - bias) * (f / 2^p)            zero and subnormals

except for the codes that a format sets aside (IEEE 754-2019, section 3.4). Everything else about a
format follows, exactly, as a `Fraction`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum
from fractions import Fraction
from functools import cached_property

from floatscope.errors import FormatError


class Specials(Enum):
    """Which codes are no finite numbers."""

    IEEE = "ieee"
    """The largest exponent is set aside: infinity (fraction 0) and NaNs, of both signs."""
    OUTERMOST_NAN = "outermost NaN"
    """No infinity; the all-ones magnitude is NaN, of both signs ("fn" of 8 bits and more)."""
    NEGATIVE_ZERO_NAN = "negative-zero NaN"
    """No infinity and no negative zero; the code of negative zero is the one NaN ("fnuz")."""
    NONE = "none"
    """Every code is a finite number ("fn" below 8 bits: OCP's fp6 and fp4)."""


@dataclass(frozen=True)
class FloatFormat:
    """A set of floating-point values and their codes.

    Raises:
        FormatError: the fields describe no format.
    """

    name: str
    _: KW_ONLY
    exponent_bits: int
    fraction_bits: int
    """Stored bits of the significand; `precision` counts the implicit one too."""
    bias: int
    specials: Specials
    signed: bool = True
    zero: bool = True
    """False: powers of two alone; exponent 0 is a normal one, without zero and subnormal (e8m0)."""
    source: str = ""
    """The document that defines it."""

    def __hash__(self) -> int:
        """By name alone, which is quick; equality looks at everything."""
        return hash(self.name)

    def __post_init__(self) -> None:
        if self.exponent_bits < 1 or self.fraction_bits < 0:
            raise FormatError(
                f"{self.name}: a float format needs at least 1 exponent bit and 0 fraction bits, "
                f"not {self.exponent_bits} and {self.fraction_bits}."
            )
        if self.signed != self.zero:
            raise FormatError(f"{self.name}: a format has both a sign and a zero, or neither.")
        if self.specials is Specials.NEGATIVE_ZERO_NAN and not self.signed:
            raise FormatError(f"{self.name}: only a signed format has a negative zero to give up.")
        if not self.zero and self.fraction_bits:
            raise FormatError(f"{self.name}: without a zero there are powers of two alone.")
        if self._largest_finite_magnitude < 1:
            raise FormatError(f"{self.name}: with these special codes no finite value is left.")

    # Sizes

    @property
    def width(self) -> int:
        """Bits of a code."""
        return int(self.signed) + self.exponent_bits + self.fraction_bits

    @property
    def precision(self) -> int:
        """Significand bits with the implicit one."""
        return self.fraction_bits + 1

    @property
    def num_codes(self) -> int:
        return 1 << self.width

    # Special codes

    @property
    def has_infinity(self) -> bool:
        return self.specials is Specials.IEEE

    @property
    def has_nan(self) -> bool:
        if self.specials is Specials.IEEE:
            return self.fraction_bits > 0
        return self.specials is not Specials.NONE

    @property
    def has_negative_zero(self) -> bool:
        return self.signed and self.zero and self.specials is not Specials.NEGATIVE_ZERO_NAN

    @property
    def sign_mask(self) -> int:
        """The sign bit of a code; 0 in an unsigned format."""
        return 1 << (self.width - 1) if self.signed else 0

    @property
    def infinity_code(self) -> int | None:
        """Code of positive infinity, if there is one."""
        return self._exponent_ones << self.fraction_bits if self.has_infinity else None

    @property
    def nan_code(self) -> int | None:
        """Code of the canonical NaN, if there is one: quiet, with an empty payload, positive."""
        if not self.has_nan:
            return None
        if self.specials is Specials.NEGATIVE_ZERO_NAN:
            return self.sign_mask
        if self.specials is Specials.OUTERMOST_NAN:
            return self._magnitude_ones
        return (self._exponent_ones << self.fraction_bits) | 1 << (self.fraction_bits - 1)

    # Exponents and values

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal value."""
        return (1 if self.zero else 0) - self.bias

    @property
    def emax(self) -> int:
        """Exponent of the largest finite value."""
        return self.exponent_of(self._largest_finite_magnitude)

    @property
    def min_octave(self) -> int:
        """Exponent of the smallest positive value, subnormals included."""
        return self.emin - (self.fraction_bits if self.zero else 0)

    @property
    def num_octaves(self) -> int:
        """Octaves [2^e, 2^(e+1)) that hold at least one value."""
        return self.emax - self.min_octave + 1

    @cached_property
    def max(self) -> Fraction:
        """Largest finite value."""
        return self.magnitude_of(self._largest_finite_magnitude)

    @property
    def smallest_normal(self) -> Fraction:
        return Fraction(2) ** self.emin

    @property
    def smallest(self) -> Fraction:
        """Smallest positive value: subnormal where there are any, else the smallest normal."""
        return Fraction(2) ** self.min_octave

    @property
    def eps(self) -> Fraction:
        """Distance from 1 to the next larger value, were both in range: 2^-fraction_bits."""
        return Fraction(1, 1 << self.fraction_bits)

    # Thresholds under rounding to nearest, ties to even

    @property
    def zero_threshold(self) -> Fraction:
        """Largest magnitude that rounds to zero: half the smallest value, a tie that zero wins.

        Raises:
            FormatError: the format has no zero.
        """
        if not self.zero:
            raise FormatError(f"{self.name} has no zero to round to.")
        return self.smallest / 2

    @property
    def overflow_threshold(self) -> Fraction:
        """Where rounding leaves the finite values: half an ulp above the largest.

        A magnitude above it overflows, one below does not; `tie_overflows` decides the threshold.
        """
        return self.max + Fraction(2) ** (self.emax - self.fraction_bits) / 2

    @property
    def tie_overflows(self) -> bool:
        """Whether the threshold itself overflows: it does if the largest significand is odd.

        A significand of one bit is 1, whatever the code; a longer one ends like its code.
        """
        return self.fraction_bits == 0 or self._largest_finite_magnitude % 2 == 1

    # Codes without a sign

    @property
    def _exponent_ones(self) -> int:
        return (1 << self.exponent_bits) - 1

    @property
    def _magnitude_ones(self) -> int:
        return (1 << (self.exponent_bits + self.fraction_bits)) - 1

    @property
    def _largest_finite_magnitude(self) -> int:
        if self.specials is Specials.IEEE:
            return (self._exponent_ones << self.fraction_bits) - 1
        return self._magnitude_ones - (self.specials is Specials.OUTERMOST_NAN)

    def exponent_of(self, magnitude_code: int) -> int:
        """The exponent of a code without sign; that of zero and subnormals is emin."""
        field = magnitude_code >> self.fraction_bits
        return max(field, 1 if self.zero else 0) - self.bias

    def magnitude_of(self, magnitude_code: int) -> Fraction:
        """The value of a finite code without its sign bit."""
        fraction = magnitude_code & ((1 << self.fraction_bits) - 1)
        is_normal = not self.zero or magnitude_code >> self.fraction_bits > 0
        significand = fraction + (int(is_normal) << self.fraction_bits)
        return significand * Fraction(2) ** (self.exponent_of(magnitude_code) - self.fraction_bits)
