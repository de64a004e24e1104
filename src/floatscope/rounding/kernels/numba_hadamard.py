"""The Hadamard transform of neighbors along a column, by additions and subtractions alone.

Columns are taken 64 at a time, in a room that stays in the first-level cache. Rows of the room are
told apart by where they start: a slice of an array costs more than the 16 additions it would be
made for.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.kernels.numba_bits import as_float, prefetch, shift_left

C = 64
u32, u64, f32 = np.uint32, np.uint64, np.float32


@njit(nogil=True)
def value_of(x, i, up, sign):
    """The value whose bits, of fp32 or bf16, are x[i], times a sign."""
    return f32(as_float(shift_left(u32(x[u64(i)]), up)) * sign)


@njit(nogil=True)
def four_of(a, b, c, d):
    """Two steps of the transform of four."""
    s, t, u, v = f32(a + b), f32(a - b), f32(c + d), f32(c - d)
    return f32(s + u), f32(t + v), f32(s - u), f32(t - v)


@njit(nogil=True, error_model="numpy")
def load(x, first, room, at, sign, wanted):
    """room[at:] = sign * the values of x from `first` on."""
    up = u32(32 - 8 * x.itemsize)
    for c in range(wanted):
        room[u64(at + c)] = value_of(x, first + c, up, sign)


@njit(nogil=True, error_model="numpy")
def load_four(x, first, columns, ahead, room, at, signs, i, wanted):
    """The transforms of four rows of x, from `first` on, in the room.

    The values that are so far `ahead` are asked for.
    """
    up, second, third = u32(32 - 8 * x.itemsize), first + columns, first + 2 * columns
    fourth, a, b, c, d = first + 3 * columns, signs[i], signs[i + 1], signs[i + 2], signs[i + 3]
    for row in (first, second, third, fourth):
        for j in range(0, C, 64 // x.itemsize):
            prefetch(x, row + ahead + j)
    for j in range(wanted):
        p, q, r, s = four_of(
            value_of(x, first + j, up, a), value_of(x, second + j, up, b),
            value_of(x, third + j, up, c), value_of(x, fourth + j, up, d),
        )  # fmt: skip
        room[u64(at + j)], room[u64(at + C + j)] = p, q
        room[u64(at + 2 * C + j)], room[u64(at + 3 * C + j)] = r, s


@njit(nogil=True, error_model="numpy")
def store_four(room, at, out, first, apart, factor, wanted):
    """The transforms of four rows of the room, four apart, times the factor in rows of `out`."""
    for j in range(wanted):
        p, q, r, s = four_of(
            room[u64(at + j)], room[u64(at + 4 * C + j)],
            room[u64(at + 8 * C + j)], room[u64(at + 12 * C + j)],
        )  # fmt: skip
        out[u64(first + j)], out[u64(first + apart + j)] = f32(p * factor), f32(q * factor)
        out[u64(first + 2 * apart + j)] = f32(r * factor)
        out[u64(first + 3 * apart + j)] = f32(s * factor)


@njit(nogil=True, error_model="numpy")
def turn_sixteen(x, first, columns, signs, factor, out, room, wanted):
    """The transform of 16 rows: by fours on the way into the room, and on the way out of it."""
    for i in range(0, 16, 4):
        at = first + i * columns
        load_four(x, at, columns, 16 * columns, room, i * C, signs, i, wanted)
    for i in range(4):
        store_four(room, i * C, out, first + i * columns, 4 * columns, factor, wanted)


@njit(nogil=True, error_model="numpy")
def by_two(x, out, a, step):
    """Rows a and a + step, added and subtracted."""
    b = a + step
    for c in range(C):
        out[u64(a + c)] = f32(x[u64(a + c)] + x[u64(b + c)])
    for c in range(C):
        out[u64(b + c)] = f32(x[u64(a + c)] - x[u64(b + c)])


@njit(nogil=True, error_model="numpy")
def turn_group(x, first, columns, signs, factor, out, rooms, wanted):
    """The transform of a group of rows of any size, step by step."""
    given, made, size = rooms[0], rooms[1], signs.size
    for i in range(size):
        load(x, first + i * columns, given, i * C, signs[i], wanted)
    step = 1
    while step < size:
        for i in range(size):
            if i & step == 0:
                by_two(given, made, i * C, step * C)
        given, made = made, given
        step *= 2
    for i in range(size):
        at, to = i * C, first + i * columns
        for c in range(wanted):
            out[u64(to + c)] = f32(given[u64(at + c)] * factor)


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
        for left in range(0, columns, C):  # the last ones overlap with those before
            first, wanted = top * columns + max(min(left, columns - C), 0), min(C, columns)
            if size != 16:
                turn_group(x, first, columns, signs, factor, values, rooms, wanted)
            elif wanted == C:
                turn_sixteen(x, first, columns, signs, factor, values, rooms[0], C)
            else:
                turn_sixteen(x, first, columns, signs, factor, values, rooms[0], wanted)
    return out[: x.size]
