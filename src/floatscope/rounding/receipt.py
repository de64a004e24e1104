"""The receipt of a cast: what it changed beyond rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COUNTS = (
    "overflowed", "infinite", "nan", "saturated", "became_nan", "raised", "flushed", "lost_sign",
)  # fmt: skip
"""What a kernel counts, in its order."""
NUM_COUNTS = len(COUNTS)


@dataclass
class Receipt:
    """Counts of elements, added up over every call it is given to.

    Counting costs next to nothing, so it can stay on: a saturating cast leaves no other trace of an
    overflow.
    """

    elements: int = 0
    """All elements."""
    overflowed: int = 0
    """Finite inputs that rounded beyond the largest value, whatever became of them."""
    saturated: int = 0
    """Finite or infinite inputs that became the largest value of their sign by the rules."""
    became_nan: int = 0
    """Inputs other than NaN that became NaN by the rules."""
    raised: int = 0
    """Inputs for which the rules say "raise"; the call that met them raised."""
    nan: int = 0
    """NaN inputs."""
    infinite: int = 0
    """Infinite inputs."""
    flushed: int = 0
    """Non-zero inputs that became zero, of either sign."""
    lost_sign: int = 0
    """Negative inputs, -0 among them, that became a zero without sign."""

    def __iadd__(self, other: Receipt) -> Receipt:
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)
        return self

    def __add__(self, other: Receipt) -> Receipt:
        total = Receipt(**vars(self))
        total += other
        return total

    def add(self, elements: int, counts: Sequence[int]) -> None:
        """Add what a kernel counted over so many elements."""
        self += Receipt(elements, **dict(zip(COUNTS, map(int, counts), strict=True)))
