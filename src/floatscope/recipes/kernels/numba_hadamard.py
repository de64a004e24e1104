"""The Hadamard transform of neighbors along a column, by additions and subtractions alone.

Columns are taken 64 at a time, in a room that stays in the first-level cache. Loops have this
constant length, so that the compiler makes them vector instructions; only the last columns may be
fewer. Rows of the room are told apart by where they start: a slice of an array costs more than the
16 additions it would be made for.
"""

# pyright: reportCallIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from floatscope.rounding import jobs
from floatscope.rounding.jobs import ADDRESS, FLAG, HEAD, SIGNED, Region
from floatscope.rounding.kernels import checksum, numba_region
from floatscope.rounding.kernels.numba_bits import as_float, prefetch, shift_left
from floatscope.rounding.kernels.numba_region import REGION, flushes, pointer, take

C = 64
USUAL = 16
"""The size of a transform whose results the compiler can put in columns at once."""
u16, u32, u64, f32 = np.uint16, np.uint32, np.uint64, np.float32


class Turn(ctypes.Structure):
    """Groups of `group` rows to transform; `size` and `piece` count them.

    x are the bits of a matrix of fp32 or bf16, and out is fp32; `signs` are those of a group's
    rows, and `factor` is what results are multiplied by. With `transposed`, out is the transpose.
    """

    _fields_ = [
        *HEAD,
        ("x", ADDRESS),
        ("out", ADDRESS),
        ("signs", ADDRESS),
        ("group", SIGNED),
        ("columns", SIGNED),
        ("factor", ctypes.c_float),
        ("transposed", FLAG),
    ]


TURN = np.dtype(Turn)


@njit(nogil=True, cache=True, error_model="numpy")
def load(x, first, ahead, room, at, sign, wanted):
    """room[at:] = sign * the values of x, bits of fp32 or bf16, from `first` on.

    Those so far `ahead` are asked for.
    """
    up = u32(32 - 8 * x.itemsize)
    if wanted == C:
        for c in range(0, C, 64 // x.itemsize):
            prefetch(x, first + ahead + c)
        for c in range(C):
            room[u64(at + c)] = f32(as_float(shift_left(u32(x[u64(first + c)]), up)) * sign)
    else:
        for c in range(wanted):
            room[u64(at + c)] = f32(as_float(shift_left(u32(x[u64(first + c)]), up)) * sign)


@njit(nogil=True, cache=True, error_model="numpy")
def by_two(x, out, a, step):
    """Rows a and a + step, added and subtracted."""
    b = a + step
    for c in range(C):
        out[u64(a + c)] = f32(x[u64(a + c)] + x[u64(b + c)])
    for c in range(C):
        out[u64(b + c)] = f32(x[u64(a + c)] - x[u64(b + c)])


@njit(nogil=True, cache=True, error_model="numpy")
def by_four(x, out, a, step):
    """Two steps at once: rows a and a + step, a + 2 step and a + 3 step, and those by twos."""
    b, c, d = a + step, a + 2 * step, a + 3 * step
    for i in range(C):
        s, t = x[u64(a + i)], x[u64(b + i)]
        u, v = x[u64(c + i)], x[u64(d + i)]
        s, t, u, v = f32(s + t), f32(s - t), f32(u + v), f32(u - v)
        out[u64(a + i)], out[u64(b + i)] = f32(s + u), f32(t + v)
        out[u64(c + i)], out[u64(d + i)] = f32(s - u), f32(t - v)


@njit(nogil=True, cache=True, error_model="numpy")
def butterflies(x, other, size):
    """Sylvester's transform of the rows of x: those 1, 2, 4, ... apart; in x or in `other`."""
    step = 1
    while step < size:
        at_once = 2 if 2 * step < size else 1  # steps
        for i in range(size):
            if i & (step << at_once) - step == 0:
                if at_once == 2:
                    by_four(x, other, i * C, step * C)
                else:
                    by_two(x, other, i * C, step * C)
        x, other = other, x
        step <<= at_once
    return x


@njit(nogil=True, cache=True, error_model="numpy")
def store(room, at, out, first, factor, wanted):
    """out[first:] = factor * a row of the room."""
    if wanted == C:
        for c in range(C):
            out[u64(first + c)] = f32(room[u64(at + c)] * factor)
    else:
        for c in range(wanted):
            out[u64(first + c)] = f32(room[u64(at + c)] * factor)


@njit(nogil=True, cache=True, error_model="numpy")
def store_transposed(room, size, out, first, rows, factor, wanted):
    """The columns of the room as pieces of the rows of `out`."""
    if size == USUAL:
        for c in range(wanted):
            for i in range(USUAL):
                out[u64(first + c * rows + i)] = f32(room[u64(i * C + c)] * factor)
    else:
        for c in range(wanted):
            for i in range(size):
                out[u64(first + c * rows + i)] = f32(room[u64(i * C + c)] * factor)


@njit(nogil=True, cache=True, error_model="numpy")
def turn_group(x, top, left, columns, ahead, signs, room, other, wanted):
    """Transform so many columns of the rows from `top` on: a room with the result."""
    for i in range(signs.size):
        load(x, (top + i) * columns + left, ahead, room, i * C, signs[i], wanted)
    return butterflies(room, other, signs.size)


@njit(nogil=True, cache=True, error_model="numpy")
def turn_rows(x, out, columns, signs, factor, start, stop, room, other):
    """Transform rows start to stop, in whole groups."""
    size = signs.size
    for top in range(start, stop, size):
        for left in range(0, columns, C):
            wanted = min(C, columns - left)
            turned = turn_group(x, top, left, columns, size * columns, signs, room, other, wanted)
            for i in range(size):
                store(turned, i * C, out, (top + i) * columns + left, factor, wanted)


@njit(nogil=True, cache=True, error_model="numpy")
def turn_transposed(x, out, columns, signs, factor, start, stop, room, other):
    """The same into the transpose: down first, which is along the rows of `out`."""
    size, rows = signs.size, x.size // columns
    for left in range(0, columns, C):
        wanted = min(C, columns - left)
        for top in range(start, stop, size):
            turned = turn_group(x, top, left, columns, size * columns, signs, room, other, wanted)
            store_transposed(turned, size, out, left * rows + top, rows, factor, wanted)


def _turn(given: Any, revision: int) -> Any:
    @cfunc(REGION, cache=True, error_model="numpy")
    def turn(p):
        job = carray(p, 1, TURN)[0]
        if flushes(job.one):
            return
        count, columns, group = job.size * job.group * job.columns, job.columns, job.group
        x, out = carray(pointer(job.x, given), count), carray(pointer(job.out, f32), count)
        signs, factor = carray(pointer(job.signs, f32), group), job.factor
        room = np.zeros(group * C if revision > 0 else 0, np.float32)
        other = np.zeros(group * C, np.float32)
        start = take(p) * job.piece
        while start < job.size:
            top, bottom = start * group, min(start + job.piece, job.size) * group
            if job.transposed:
                turn_transposed(x, out, columns, signs, factor, top, bottom, room, other)
            else:
                turn_rows(x, out, columns, signs, factor, top, bottom, room, other)
            start = take(p) * job.piece

    return turn


@cache
def turn_region(given: Any) -> Region:
    """Transforms matrices: `Turn`, for the unsigned integers that values are read as."""
    return Region(_turn(given, checksum(jobs) + checksum(numba_region)))
