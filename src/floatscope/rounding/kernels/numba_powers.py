"""Rounding fp32 to e8m0, to nearest: powers of two without zero and sign, for scales.

A format of its own kind deserves a loop of its own: two fp32 subnormals and the normals without
their fractions are all its values. The rules of zeros, negatives, overflow and infinity are one
value each. Ties go up, since a significand of one bit is odd.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.grid import INDEX
from floatscope.rounding.kernels.numba_bits import prefetch, store_past_caches
from floatscope.rounding.receipt import NUM_COUNTS

OVERFLOW, INFINITE_RULE = INDEX["overflow"], INDEX["infinity"]
NEGATIVE, ZERO = INDEX["negative"], INDEX["zero"]
BEYOND, INFINITE, NANS, SATURATED, BECAME_NAN, RAISED, FLUSHED, LOST_SIGN = range(NUM_COUNTS)
CHUNK = 1 << 20
LINES, AHEAD = 64, 1024
"""Elements between two requests for memory, and how far ahead these look."""

u32, u64 = np.uint32, np.uint64
SIGN, MAGNITUDE = u32(0x8000_0000), u32(0x7FFF_FFFF)
INFINITY, QUIET = u32(0x7F80_0000), u32(0x7FC0_0000)
SMALLEST, SECOND, LARGEST = u32(0x0040_0000), u32(0x0080_0000), u32(0x7F00_0000)
TIE_BELOW = u32(0x0060_0000)
NONE = u32(0)


@njit(nogil=True)
def powers(x, out, g, found):
    """Round bits of fp32; `found` receives how many overflow, are infinite, NaN, zero, negative.

    A negative infinity counts as negative, unless signs are dropped; the last number is of all.
    """
    overflow = LARGEST if g[OVERFLOW] == 0 else QUIET
    infinite = LARGEST if g[INFINITE_RULE] == 0 else QUIET
    zero = SMALLEST if g[ZERO] == 1 else QUIET
    negative = SMALLEST if g[NEGATIVE] == 3 else QUIET
    last_taken = MAGNITUDE if g[NEGATIVE] != 2 else u32(0xFFFF_FFFF)
    beyond, infinities, nans, zeros, negatives, every = NONE, NONE, NONE, NONE, NONE, NONE
    for i in range(x.size):
        u = x[i]
        a = u32(u & MAGNITUDE)
        r = u32(u32(a + SMALLEST) & INFINITY)
        small = SECOND if a >= TIE_BELOW else SMALLEST
        r = small if a < SECOND else r
        is_nan, is_zero = a > INFINITY, a == NONE
        is_negative = (u > last_taken) & (not is_zero) & (not is_nan)
        is_infinite = (a == INFINITY) & (not is_negative)
        is_beyond = (r > LARGEST) & (a < INFINITY) & (not is_negative)
        r = overflow if is_beyond else r
        r = infinite if is_infinite else r
        r = negative if is_negative else r
        r = zero if is_zero else r
        out[i] = u32(QUIET | u32(u & SIGN)) if is_nan else r
        beyond = u32(beyond + u32(is_beyond))
        infinities = u32(infinities + u32(is_infinite))
        nans = u32(nans + u32(is_nan))
        zeros = u32(zeros + u32(is_zero))
        negatives = u32(negatives + u32(is_negative))
        every = u32(every + u32(a == INFINITY))
    found[0], found[1], found[2] = beyond, infinities, nans
    found[3], found[4], found[5] = zeros, negatives, every


def _uncounted(past_caches: bool) -> Any:
    @njit(nogil=True)
    def uncounted(x, out, g):
        """`powers` without counts, for whole lines."""
        overflow = LARGEST if g[OVERFLOW] == 0 else QUIET
        infinite = LARGEST if g[INFINITE_RULE] == 0 else QUIET
        zero = SMALLEST if g[ZERO] == 1 else QUIET
        negative = SMALLEST if g[NEGATIVE] == 3 else QUIET
        last_taken = MAGNITUDE if g[NEGATIVE] != 2 else u32(0xFFFF_FFFF)
        for line in range(0, x.size, LINES):
            for j in range(0, LINES, 16):
                prefetch(x, line + j + AHEAD)
            for j in range(LINES):
                i = u64(line + j)
                u = x[i]
                a = u32(u & MAGNITUDE)
                r = u32(u32(a + SMALLEST) & INFINITY)
                r = SMALLEST if a < TIE_BELOW else r
                r = overflow if r > LARGEST else r
                r = infinite if a == INFINITY else r
                r = negative if u > last_taken else r
                r = zero if a == NONE else r
                r = u32(QUIET | u32(u & SIGN)) if a > INFINITY else r
                if past_caches:
                    store_past_caches(out, i, r)
                else:
                    out[i] = r

    return uncounted


near, past = _uncounted(False), _uncounted(True)


@njit(nogil=True)
def round_powers(x, out, offset, g, key, spare, stream, counts, counted):
    """Round x into out, and count as `round_span` does if `counted`; nothing is left to chance."""
    found = np.zeros(6, np.int64)
    if not counted:
        whole = x.size // LINES * LINES
        if stream:
            past(x[:whole], out[:whole], g)
        else:
            near(x[:whole], out[:whole], g)
        powers(x[whole:], out[whole:], g, found)
        return
    for first in range(0, x.size, CHUNK):
        last = min(first + CHUNK, x.size)
        powers(x[first:last], out[first:last], g, found)
        counts[BEYOND] += found[0]
        counts[INFINITE] += found[5]
        counts[NANS] += found[2]
        for rule, number in ((g[OVERFLOW], found[0]), (g[INFINITE_RULE], found[1])):
            counts[SATURATED if rule == 0 else BECAME_NAN if rule == 2 else RAISED] += number
        if g[ZERO] >= 2:
            counts[BECAME_NAN if g[ZERO] == 2 else RAISED] += found[3]
        if g[NEGATIVE] >= 4:
            counts[BECAME_NAN if g[NEGATIVE] == 4 else RAISED] += found[4]
