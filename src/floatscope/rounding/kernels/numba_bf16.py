"""bf16 from fp32 and back, on their bits."""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.kernels.numba_bits import prefetch, shift_left, shift_right

LINES, AHEAD = 64, 2048
"""Elements between two requests for memory, and how far ahead these look."""

u16, u32, u64 = np.uint16, np.uint32, np.uint64
HALF_LESS, WIDTH, ONE = u32(0x7FFF), u32(16), u32(1)
MAGNITUDE, INFINITY, QUIET = u32(0x7FFF_FFFF), u32(0x7F80_0000), u32(0x0040_0000)


@njit(nogil=True)
def widen(x, room):
    """The bits of bf16 as those of fp32, in the room given."""
    whole = x.size // LINES * LINES
    for line in range(0, whole, LINES):
        for j in range(0, LINES, 32):
            prefetch(x, line + j + AHEAD)
        for j in range(LINES):
            i = u64(line + j)
            room[i] = shift_left(u32(x[i]), WIDTH)
    for i in range(whole, x.size):
        room[i] = shift_left(u32(x[i]), WIDTH)
    return room[: x.size]


@njit(nogil=True)
def nearest_bf16(u):
    """The bits of the bf16 that is nearest to those of an fp32, ties to even; NaN stays NaN."""
    up = u32(HALF_LESS + u32(shift_right(u, WIDTH) & ONE))
    rounded = u32(u | QUIET) if u32(u & MAGNITUDE) > INFINITY else u32(u + up)
    return u16(shift_right(rounded, WIDTH))


@njit(nogil=True)
def narrow(x, out):
    """The bits of fp32 as those of bf16."""
    whole = x.size // LINES * LINES
    for line in range(0, whole, LINES):
        for j in range(0, LINES, 32):
            prefetch(out, line + j + AHEAD)
        for j in range(LINES):
            i = u64(line + j)
            out[i] = nearest_bf16(x[i])
    for i in range(whole, x.size):
        out[i] = nearest_bf16(x[i])
