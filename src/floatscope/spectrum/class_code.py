"""How the counts of octaves split over their classes, and their square sums, in few bits.

Bits, the most significant of a byte first, filled up with zeros to a whole byte. They hold one
number after the other, each as its difference d from what is expected, in an exponential Golomb
code of some order k: v = 2 d, or v = -2 d - 1 if d is negative; v + 2^k is written in binary, with
b bits, after b - 1 - k zeros. Let bits(n) be the length of n in binary (0 for 0), and let // round
down. `fraction_bits` is p. Octave by octave from the lowest, those without elements left out, n
elements are written as

    rest = n, drift = 0
    for ones = 0, 1, 2, ... while rest > 0:
        half = (rest + 1) // 2
        pair: elements in classes 1 + 2 ones and 2 + 2 ones, and if ones = 0 in class 0; of rest
            expected: rest if ones >= p, else half + drift
        drift = (pair - half) // 4
        if pair > 0:
            lower: those of the pair that are not in class 2 + 2 ones; of pair
                expected: pair if ones >= p,
                          else (pair + 1) // 2 + drift + pair // 2^max(p - ones - 1, 0)
        if ones = 0 and lower > 0:
            point: those of the lower in class 0; of lower
                expected: lower // 2^max(p - 2, 0)
        rest = rest - pair
    square: the square sum
        expected: the sum of count * weight over the classes

A count "of most" lies between 0 and most; an expected count below 0 is taken as 0, one above most
as most. Its k is bits(min(expected, most - expected)) // 2. That of the square sum is
24 + bits(n // 2) // 2. The weight of class 0 is 2^26. With

    a = 2^14 - 2^13 // 2^ones, b = 2^14 - (3 2^11) // 2^ones, c = 2^14 - 2^13 // 2^(ones + 1)

that of class 1 + 2 ones is (a a + a b + b b) // 3, that of class 2 + 2 ones (b b + b c + c c) // 3.

So where values lie on a grid of p fraction bits, evenly or with a constant slope over an octave,
little more is written than the noise of the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from floatscope.spectrum.cells import num_classes

NUM_CLASSES = num_classes(52)
"""Of fp64, the finest dtype."""

_Number = Callable[[int, int, int, int], int]
"""(first class, class after the last, expected count, most) -> count, which is written or read."""


def _weight(number: int) -> int:
    """The expected square of a class's significands, as a multiple of 2^-26."""
    if number == 0:
        return 2**26
    ones, is_upper = divmod(number - 1, 2)
    ends = [2**14 - (2**13 >> ones), 2**14 - (3 * 2**11 >> ones), 2**14 - (2**13 >> ones + 1)]
    low, high = ends[is_upper : is_upper + 2]
    return (low * low + low * high + high * high) // 3


_WEIGHTS = [_weight(number) for number in range(NUM_CLASSES + 1)]


def encode(octaves: Sequence[tuple[Sequence[int], int]], fraction_bits: int) -> bytes:
    """The bytes of some octaves, each with counts by class and a square sum.

    Counts are not negative, one of each octave's is positive, and only `NUM_CLASSES` are looked at.
    """
    written: list[str] = []
    for counts, square in octaves:
        written += _written(counts, square, fraction_bits)
    text = "".join(written)
    size = (len(text) + 7) // 8
    return int("0" + text.ljust(8 * size, "0"), 2).to_bytes(size)


def decode(data: bytes, sizes: Sequence[int], fraction_bits: int) -> list[tuple[list[int], int]]:
    """What `encode` was given.

    Args:
        data: its result.
        sizes: elements of each octave, all positive.
        fraction_bits: as given to `encode`.

    Raises:
        ValueError: these bytes are of no such octaves. Most alterations are not noticed here.
    """
    reader = _Reader(data)

    def number(start: int, stop: int, expected: int, most: int) -> int:
        count = expected + reader.difference(_order(expected, most))
        if not 0 <= count <= most or (count and start >= NUM_CLASSES):
            raise ValueError(f"{count} elements in classes {start} to {stop - 1}, of {most}")
        return count

    octaves = []
    for n in sizes:
        counts = _split(n, fraction_bits, number)
        difference = reader.difference(_square_order(n))
        octaves.append((counts, _expected_square(counts) + difference))
    reader.end()
    return octaves


def _written(counts: Sequence[int], square: int, fraction_bits: int) -> list[str]:
    """The bits of one octave, number by number."""
    written: list[str] = []

    def number(start: int, stop: int, expected: int, most: int) -> int:
        count = sum(counts[start:stop])
        written.append(_code(count - expected, _order(expected, most)))
        return count

    n = sum(counts)
    _split(n, fraction_bits, number)
    written.append(_code(square - _expected_square(counts), _square_order(n)))
    return written


def _split(n: int, p: int, number: _Number) -> list[int]:
    """Counts by class of an octave of n elements, the numbers coming from `number` in order."""
    counts: list[int] = []
    rest, drift, ones = n, 0, 0
    while rest:
        start = len(counts)
        half = (rest + 1) // 2
        expected = rest if ones >= p else min(max(half + drift, 0), rest)
        pair = number(start, 3 + 2 * ones, expected, rest)
        drift = (pair - half) // 4
        lower = point = 0
        if pair:
            expected = (pair + 1) // 2 + drift + (pair >> max(p - ones - 1, 0))
            expected = pair if ones >= p else min(max(expected, 0), pair)
            lower = number(start, 2 + 2 * ones, expected, pair)
        if not ones:
            if lower:
                point = number(0, 1, lower >> max(p - 2, 0), lower)
            counts.append(point)
        counts += [lower - point, pair - lower]
        rest -= pair
        ones += 1
    return counts


def _order(expected: int, most: int) -> int:
    return min(expected, most - expected).bit_length() // 2


def _square_order(n: int) -> int:
    return 24 + (n // 2).bit_length() // 2


def _expected_square(counts: Sequence[int]) -> int:
    return sum(count * weight for count, weight in zip(counts, _WEIGHTS, strict=False))


def _code(difference: int, order: int) -> str:
    value = 2 * difference if difference >= 0 else -2 * difference - 1
    digits = f"{value + (1 << order):b}"
    return "0" * (len(digits) - 1 - order) + digits


class _Reader:
    """Takes numbers off bits."""

    def __init__(self, data: bytes) -> None:
        self._text = f"{int.from_bytes(data):0{8 * len(data)}b}" if data else ""
        self._at = 0

    def difference(self, order: int) -> int:
        one = self._text.find("1", self._at)
        end = 2 * one - self._at + order + 1
        if one < 0 or end > len(self._text):
            raise ValueError("the bits end too early")
        value = int(self._text[one:end], 2) - (1 << order)
        self._at = end
        return -(value + 1) // 2 if value % 2 else value // 2

    def end(self) -> None:
        rest = self._text[self._at :]
        if len(rest) >= 8 or "1" in rest:
            raise ValueError("bits are left over")
