"""fp32 inputs that decide whether a cast is right: every value, tie and neighbor of a format."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from floatscope.formats import FloatFormat, classify, decode

SPECIAL = [0x0000_0000, 0x0000_0001, 0x007F_FFFF, 0x0080_0000, 0x7F7F_FFFF, 0x7F80_0000]
NANS = [0x7F80_0001, 0x7FC0_0000, 0x7FFF_FFFF]


def decisive(form: FloatFormat) -> NDArray[np.uint32]:
    """Bits of all fp32 numbers that are a value or a tie of the format, or next to one, or special.

    For formats of up to 16 bits; both signs; NaNs of several payloads.
    """
    magnitudes = range(form.sign_mask or form.num_codes)
    values = [
        Fraction(decode(code, form))
        for code in magnitudes
        if classify(code, form) not in ("nan", "infinite")
    ]
    beyond = form.max + 2 * (form.overflow_threshold - form.max)
    points = [*values, beyond]
    points += [(a + b) / 2 for a, b in itertools.pairwise([*values, beyond])]
    with np.errstate(over="ignore", under="ignore"):
        exact = np.array([float(p) for p in points if p < 2**128], np.float32)
        around = [np.nextafter(exact, np.float32(end)) for end in (0, np.inf)]
    bits = np.concatenate([exact, *around]).view(np.uint32)
    bits = np.concatenate([bits, np.array(SPECIAL + NANS, np.uint32)])
    return np.unique(np.concatenate([bits, bits | np.uint32(1 << 31)]))


def stratified(form: FloatFormat, count: int, seed: int = 0) -> NDArray[np.uint32]:
    """At least `count` fp32 bit patterns: the decisive ones, and random ones of every exponent."""
    rng = np.random.default_rng(seed)
    random = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([decisive(form), random])
