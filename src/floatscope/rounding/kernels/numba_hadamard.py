"""The Hadamard transform of neighbors along a column, by additions and subtractions alone.

Columns are taken 64 at a time, in a room that stays in the first-level cache. Loops have this
constant length, so that the compiler makes them vector instructions; only the last columns may be
fewer. Rows of the room are told apart by where they start: a slice of an array costs more than the
16 additions it would be made for.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.kernels.numba_bits import as_float, prefetch, shift_left

C = 64
u32, u64, f32 = np.uint32, np.uint64, np.float32


@njit(nogil=True, error_model="numpy")
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


@njit(nogil=True, error_model="numpy")
def by_two(x, out, a, step):
    """Rows a and a + step, added and subtracted."""
    b = a + step
    for c in range(C):
        out[u64(a + c)] = f32(x[u64(a + c)] + x[u64(b + c)])
    for c in range(C):
        out[u64(b + c)] = f32(x[u64(a + c)] - x[u64(b + c)])


@njit(nogil=True, error_model="numpy")
def by_four(x, out, a, step):
    """Two steps at once: rows a and a + step, a + 2 step and a + 3 step, and those by twos."""
    b, c, d = a + step, a + 2 * step, a + 3 * step
    for i in range(C):
        s, t = x[u64(a + i)], x[u64(b + i)]
        u, v = x[u64(c + i)], x[u64(d + i)]
        s, t, u, v = f32(s + t), f32(s - t), f32(u + v), f32(u - v)
        out[u64(a + i)], out[u64(b + i)] = f32(s + u), f32(t + v)
        out[u64(c + i)], out[u64(d + i)] = f32(s - u), f32(t - v)


@njit(nogil=True, error_model="numpy")
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


@njit(nogil=True, error_model="numpy")
def store(room, at, out, first, factor, wanted):
    """out[first:] = factor * a row of the room."""
    if wanted == C:
        for c in range(C):
            out[u64(first + c)] = f32(room[u64(at + c)] * factor)
    else:
        for c in range(wanted):
            out[u64(first + c)] = f32(room[u64(at + c)] * factor)


@njit(nogil=True)
def turning_rooms(size):
    """Space for the columns of a group of rows, before a step and after it."""
    return np.zeros((2, size * C), np.float32)


@njit(nogil=True, error_model="numpy")
def turn_rows(x, columns, signs, factor, out, rooms):
    """The bits of the transforms of x, whole groups of rows, in `out`.

    x are the bits of fp32 or bf16, `signs` those of a group's rows, `factor` is what the sums are
    multiplied by, and `rooms` are those of `turning_rooms`.
    """
    values, size = out.view(np.float32), signs.size
    for top in range(0, x.size // columns, size):
        for left in range(0, columns, C):
            wanted = min(C, columns - left)
            for i in range(size):
                first = (top + i) * columns + left
                load(x, first, size * columns, rooms[0], i * C, signs[i], wanted)
            turned = butterflies(rooms[0], rooms[1], size)
            for i in range(size):
                store(turned, i * C, values, (top + i) * columns + left, factor, wanted)
    return out[: x.size]
