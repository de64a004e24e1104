"""Integer formats: equally spaced values, in two's complement or symmetric."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from fractions import Fraction

from floatscope.errors import FormatError
from floatscope.formats.show import echoed


@dataclass(frozen=True)
class IntFormat:
    """The values q * step for integers q of `width` bits in two's complement.

    Raises:
        FormatError: fewer than 2 bits.
    """

    name: str
    _: KW_ONLY
    width: int
    step_exponent: int = 0
    """A step is 2^step_exponent: 0 for plain integers, -6 for the element of MXINT8."""
    symmetric: bool = False
    """Leaves the lowest code out, so that the values are the same with either sign."""
    source: str = ""

    def __hash__(self) -> int:
        """By name alone, which is quick; equality looks at everything."""
        return hash(self.name)

    def __post_init__(self) -> None:
        if self.width < 2:
            raise FormatError(f"{self.name}: an integer format needs at least 2 bits.")

    @property
    def num_codes(self) -> int:
        return 1 << self.width

    @property
    def step(self) -> Fraction:
        """Distance between neighbors."""
        return Fraction(2) ** self.step_exponent

    @property
    def max(self) -> Fraction:
        return ((1 << (self.width - 1)) - 1) * self.step

    @property
    def min(self) -> Fraction:
        """Lowest value: one step beyond -max in two's complement, -max if symmetric."""
        return -self.max if self.symmetric else -self.max - self.step

    def decode(self, code: int) -> Fraction:
        """The value of a code in two's complement.

        Raises:
            FormatError: no such code, or the one that a symmetric format leaves out.
        """
        if not 0 <= code < self.num_codes:
            raise FormatError(f"code {echoed(f'{code:#x}')} does not fit {self.name}.")
        half = self.num_codes >> 1
        if self.symmetric and code == half:
            raise FormatError(f"{self.name} is symmetric and has no code {code:#x}.")
        return (code - self.num_codes if code >= half else code) * self.step

    def encode(self, value: Fraction | int) -> int:
        """The code of a value that the format holds.

        Raises:
            FormatError: it does not.
        """
        steps = Fraction(value) / self.step
        if steps.denominator != 1 or not self.min <= value <= self.max:
            raise FormatError(f"{self.name} does not hold {echoed(value)}.")
        return int(steps) % self.num_codes
