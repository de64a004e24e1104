"""A tally: the counts of one tensor as a flat array of int64, which every kernel fills alike.

    [cells, octave by octave][square sums, one an octave][OTHERS]

A square sum adds m * m for each element, m being its significand rounded to 14 bits (ties away from
zero), an integer between 2^13 and 2^14. Tallies of equal layout add up, except for `AMAX`.
"""

from __future__ import annotations

from dataclasses import dataclass

from floatscope.spectrum.cells import num_classes

SIGNIFICAND_BITS = 14
"""Of the rounded significands whose squares are summed."""

OTHERS = ("positive_zeros", "negative_zeros", "positive_infinities", "negative_infinities", "nans",
          "amax")  # fmt: skip
"""What follows the square sums. The last is no count: the bits of the largest finite magnitude."""


@dataclass(frozen=True)
class Layout:
    """How the bits of a float are spread over a tally."""

    width: int
    """Bits of the float that the kernel reads: 32 or 64."""
    fraction_bits: int
    lowest_octave: int
    """Of the smallest subnormal."""
    num_octaves: int

    @property
    def num_classes(self) -> int:
        return num_classes(self.fraction_bits)

    @property
    def num_cells(self) -> int:
        return self.num_octaves * self.num_classes

    @property
    def size(self) -> int:
        """Length of a tally."""
        return self.num_cells + self.num_octaves + len(OTHERS)


FP32 = Layout(32, 23, -149, 277)
FP64 = Layout(64, 52, -1074, 2098)
