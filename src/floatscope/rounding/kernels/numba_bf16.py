"""Rounding from bf16 and to bf16 on the CPU: the kernels for fp32, between two casts in the cache.

A piece is widened, rounded and narrowed before the next is looked at. The result is rounded to
bf16 to nearest, ties to even, which changes nothing if bf16 holds the format.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from floatscope.rounding.kernels import (
    checksum,
    numba_blocks,
    numba_chance,
    numba_elements,
    numba_nearest,
    numba_plain,
    numba_scales,
)
from floatscope.rounding.kernels.numba_bits import prefetch, shift_left, shift_right
from floatscope.rounding.kernels.numba_blocks import round_strips
from floatscope.rounding.kernels.numba_elements import round_span

PIECE = 1 << 14
"""Elements between the casts."""
LINES, AHEAD = 64, 2048
"""Elements between two requests for memory, and how far ahead these look."""

u16, u32, u64 = np.uint16, np.uint32, np.uint64
HALF_LESS, WIDTH, ONE = u32(0x7FFF), u32(16), u32(1)
MAGNITUDE, INFINITY, QUIET = u32(0x7FFF_FFFF), u32(0x7F80_0000), u32(0x0040_0000)


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def nearest_bf16(u):
    """The bits of the bf16 that is nearest to those of an fp32, ties to even; NaN stays NaN."""
    up = u32(HALF_LESS + u32(shift_right(u, WIDTH) & ONE))
    rounded = u32(u | QUIET) if u32(u & MAGNITUDE) > INFINITY else u32(u + up)
    return u16(shift_right(rounded, WIDTH))


@njit(nogil=True, cache=True)
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


def _spans(widens: bool, narrows: bool, revision: int) -> Any:
    @njit(nogil=True, cache=True)
    def spans(x, out, offset, g, key, spare, counts, counted):
        """`round_span` for x or out of bf16."""
        wide, result = np.empty(PIECE, np.uint32), np.empty(PIECE if revision > 0 else 0, np.uint32)
        for first in range(0, x.size, PIECE):
            last = min(first + PIECE, x.size)
            given = widen(x[first:last], wide) if widens else x[first:last]
            target = result[: last - first] if narrows else out[first:last]
            at = u64(offset + u64(first))
            round_span(given, target, at, g, key, spare, False, counts, counted)
            if narrows:
                narrow(target, out[first:last])

    return spans


def _strips(widens: bool, narrows: bool, revision: int) -> Any:
    @njit(nogil=True, cache=True, error_model="numpy")
    def strips(
        x, out, columns, stored, height, width, rule, element, amax_before, tensor_encode, apart,
        plain, stream, chance, g, offset, key, spare, counts,
    ):  # fmt: skip
        """`round_strips` for x or out of bf16."""
        whole = height * columns
        size = min(max(PIECE // whole, 1) * whole, x.size)
        wide, result = np.empty(size, np.uint32), np.empty(size if revision > 0 else 0, np.uint32)
        per_strip = (columns + width - 1) // width
        for first in range(0, x.size, size):
            last = min(first + size, x.size)
            given = widen(x[first:last], wide) if widens else x[first:last]
            target = result[: last - first] if narrows else out[first:last]
            kept = stored[first // whole * per_strip : (last + whole - 1) // whole * per_strip]
            round_strips(
                given, target, columns, kept, height, width, rule, element, amax_before,
                tensor_encode, apart, plain, stream, chance, g, u64(offset + u64(first)), key,
                spare, counts,
            )  # fmt: skip
            if narrows:
                narrow(target, out[first:last])

    return strips


_SPANS = checksum(numba_elements) + checksum(numba_chance) + checksum(numba_nearest)
_STRIPS = sum(map(checksum, (numba_blocks, numba_scales, numba_plain, numba_chance)))

SPANS = {
    (widens, narrows): _spans(widens, narrows, _SPANS)
    for widens, narrows in ((True, True), (True, False), (False, True))
}
"""Of single elements, by whether x and whether out is bf16."""
STRIPS = {
    (widens, narrows): _strips(widens, narrows, _STRIPS)
    for widens, narrows in ((True, True), (True, False), (False, True))
}
"""Of blocks, by the same."""
