"""Stochastic rounding on the CPU, as in `numba_elements.py`.

The two fast loops serve formats with a negative zero, all random bits and no counts. A hash of ten
operations decides for each element, and its 32-bit multiplications are slow already, so nothing in
these loops may be of 64 bits: not even the number of the element, which is a line's plus one's
place in it. One such vector among others of half its size closes a third of an Intel core.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.grid import INDEX
from floatscope.rounding.kernels.numba_bits import (
    as_bits,
    as_float,
    as_real,
    finish,
    is_below,
    prefetch,
    random_word,
    shift_left,
    shift_right,
    store_past_caches,
    truncated,
    widest_vectors,
    words,
)

LINES, AHEAD = 64, 1024
"""Elements between two requests for memory, and how far ahead these look."""

DROP, NORMAL = INDEX["drop"], INDEX["normal"]
STEP, ONE_BY_STEP = INDEX["step"], INDEX["one_by_step"]
LARGEST, LOWEST, NEGATIVE_ZERO = INDEX["largest"], INDEX["lowest"], INDEX["negative_zero"]

u32, u64 = np.uint32, np.uint64


# How far a value is from its smaller neighbor is cut to 32 bits of the neighbors' distance. Above
# the smallest normal these are its lowest bits; below, the value is divided by the step, which is
# exact, or underflows far below the 32 bits.
def _one_of(all_bits: bool) -> Any:
    @njit(nogil=True)
    def one_of(u, random, spare, drop, to_left, to_right, normal, step, steps_in_one, sign):
        """The magnitude that one element becomes, by 32 - spare of its random bits."""
        T = type(u)
        most, parts = as_real(T(1 << 31)), as_real(T(1 << 31)) * as_real(T(2))
        unit = T(T(1) << drop)
        a = T(u & T(~sign))
        rest = T(a & T(unit - T(1)))
        cut = u32(shift_right(shift_left(rest, to_left), to_right))
        steps = as_float(a) * steps_in_one
        whole = u32(steps if steps < most else most)  # integers reach further
        on_grid = a < normal
        cut = u32((steps - as_real(T(whole))) * parts) if on_grid else cut
        up = random < cut if all_bits else is_below(random, cut, spare)
        r = T(T(a - rest) + (unit if up else T(0)))
        return as_bits(as_real(T(T(whole) + T(up))) * step) if on_grid else r

    return one_of


def _part_of(one_of: Any, num: int) -> Any:
    @njit(nogil=True)
    def part(x, out, g, start, first, second, spare):
        """A part of `num` elements again and again; the first has index `start`."""
        T = x.dtype.type
        one, none = T(1), T(0)
        bits = T(8 * x.itemsize)
        sign = T(one << T(bits - one))
        drop, normal, largest = T(g[DROP]), T(g[NORMAL]), T(g[LARGEST])
        lowest = T(g[LOWEST])
        to_left = T(T(32) - drop) if drop < T(32) else none
        to_right = T(drop - T(32)) if drop > T(32) else none
        zero_sign = sign if g[NEGATIVE_ZERO] else none
        step, steps_in_one = as_float(T(g[STEP])), as_float(T(g[ONE_BY_STEP]))
        beyond, flushed, lost = none, none, none
        for line in range(0, x.size, num):
            for j in range(0, num, 64 // x.itemsize):
                prefetch(x, line + j + AHEAD)
            at = u32(start + u32(line))
            for j in range(num):
                i = u64(line + j)
                u = x[i]
                random = random_word(u32(at + u32(j)), first, second)
                r = one_of(
                    u, random, spare, drop, to_left, to_right, normal, step, steps_in_one, sign
                )
                a = T(u & T(~sign))
                found = finish(r, u, a, largest, lowest, sign, zero_sign)
                out[i], beyond = found[0], T(beyond + found[1])
                flushed, lost = T(flushed + found[2]), T(lost + found[3])
        return beyond, flushed, lost

    return part


@njit(nogil=True)
def by_bits(a, random, drop, normal, exponent):
    """A magnitude on a grid without subnormals of its own: random bits are added to the lost.

    A carry out of them is the step up: random < lost exactly if lost + not random overflows.
    """
    T = type(a)
    if T(T(0) - T(1)) > u64(0xFFFF_FFFF):
        noise = T(u32(~random))
        over = T(drop - T(32))
        noise = shift_left(noise, over) if drop > T(32) else shift_right(noise, T(T(0) - over))
    else:
        noise = shift_right(T(~random), T(T(32) - drop))
    return T(T(a + noise) & T(~T(T(T(1) << drop) - T(1))))


@njit(nogil=True)
def by_steps(a, random, kept, normal, exponent):
    """A magnitude in steps of its octave, or of the format's lowest: how many, and one by chance.

    `kept` is the fraction's length in the exponent. For formats whose step is a normal number of
    the carrier. NaN and infinity come out as such, or as a NaN.
    """
    T = type(a)
    one = as_bits(as_real(T(1)))
    octave = max(T(a & exponent), normal)
    step = T(octave - kept)
    steps = as_float(a) * as_float(T(T(one + one) - step))
    whole = truncated(steps)
    cut = u32((steps - whole) * (as_real(T(1 << 31)) * as_real(T(2))))
    whole = whole + as_real(T(1)) if random < cut else whole
    return as_bits(whole * as_float(step))


def _plain_part(magnitude_of: Any, past_caches: bool) -> Any:
    @njit(nogil=True)
    def part(x, out, g, start, first, second):
        """Whole lines with all random bits, of formats with a negative zero, uncounted."""
        widest_vectors()
        T = x.dtype.type
        one, none = T(1), T(0)
        bits = T(8 * x.itemsize)
        sign = T(one << T(bits - one))
        exponent = T(0x7F800000) if bits == T(32) else T(0x7FF0000000000000)
        drop, normal, largest = T(g[DROP]), T(g[NORMAL]), T(g[LARGEST])
        fraction = T(23) if bits == T(32) else T(52)
        by = shift_left(T(fraction - drop), fraction) if normal else drop
        beyond = none
        for line in range(0, x.size, LINES):
            for j in range(0, LINES, 64 // x.itemsize):
                prefetch(x, line + j + AHEAD)
            at = u32(start + u32(line))
            for j in range(LINES):
                i = u64(line + j)
                u = x[i]
                a = T(u & T(~sign))
                random = random_word(u32(at + u32(j)), first, second)
                r = magnitude_of(a, random, by, normal, exponent)
                beyond = max(beyond, r)
                r = T((a if r > largest else r) | T(u & sign))
                if past_caches:
                    store_past_caches(out, i, r)
                else:
                    out[i] = r
        return T(beyond > largest)

    return part


bits_near, bits_past = _plain_part(by_bits, False), _plain_part(by_bits, True)
steps_near, steps_past = _plain_part(by_steps, False), _plain_part(by_steps, True)


@njit(nogil=True)
def fast_part(x, out, g, start, first, second, stream):
    """The fast loop for a format and such an output; returns how many are beyond, or 1."""
    if g[NORMAL]:
        if stream:
            return steps_past(x, out, g, start, first, second)
        return steps_near(x, out, g, start, first, second)
    if stream:
        return bits_past(x, out, g, start, first, second)
    return bits_near(x, out, g, start, first, second)


def _stochastic(all_bits: bool) -> Any:
    one_of = _one_of(all_bits)
    lines, rest = _part_of(one_of, LINES), _part_of(one_of, 1)

    @njit(nogil=True)
    def stochastic(x, out, g, index, key, spare, stream, counted):
        """Stochastic rounding with 32 - spare random bits; returns what `nearest` does."""
        first, second = words(key, u64(index >> u64(32)))
        whole, start = x.size // LINES * LINES, u32(index)
        xs, ys = x[:whole], out[:whole]
        fraction = u64(23) if x.itemsize == 4 else u64(52)
        has_steps = u64(g[NORMAL] >> fraction) + g[DROP] > fraction > g[DROP]
        is_fast = g[DROP] > u64(0) if g[NORMAL] == u64(0) else has_steps
        if all_bits and is_fast and g[NEGATIVE_ZERO] and not counted:
            a = fast_part(xs, ys, g, start, first, second, stream)
            b, c = type(a)(0), type(a)(0)
        else:
            a, b, c = lines(xs, ys, g, start, first, second, spare)
        start = u32(start + u32(whole))
        d, e, f = rest(x[whole:], out[whole:], g, start, first, second, spare)
        return type(a)(a + d), type(b)(b + e), type(c)(c + f)

    return stochastic


stochastic, few_bits = _stochastic(True), _stochastic(False)


@njit(nogil=True)
def with_one_key(x, out, g, index, key, spare, stream, counted):
    """The stochastic loop for so many bits and such an output."""
    if spare:
        return few_bits(x, out, g, index, key, spare, stream, counted)
    return stochastic(x, out, g, index, key, spare, stream, counted)


@njit(nogil=True)
def by_chance(x, out, g, index, key, spare, stream, counted):
    """Two parts where the upper half of the index changes, and the words of the key with it."""
    head = min(x.size, np.int64(1 << 32) - np.int64(u32(index)))
    if head == x.size:
        return with_one_key(x, out, g, index, key, spare, stream, counted)
    a, b, c = with_one_key(x[:head], out[:head], g, index, key, spare, False, counted)
    there = u64(index + u64(head))
    d, e, f = with_one_key(x[head:], out[head:], g, there, key, spare, False, counted)
    return type(a)(a + d), type(b)(b + e), type(c)(c + f)
