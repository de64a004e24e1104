"""Rounding on the CPU: one fused pass over the bits, as fast as memory allows.

Values pass through in chunks that fit the second-level cache. A chunk is rounded by a loop without
branches, which the compiler turns into vector instructions; what lies beyond the largest value is
passed on as it is for a second, scalar look, and is rare. Large outputs are stored past the caches:
a plain store would first read the line that it overwrites; loops that do so are functions of their
own, because the compiler believes what they say of alignment. Input and output may be the same.

The kernels are serial and release the interpreter lock; `threads.py` runs them side by side.
They are written for uint32 and uint64 alike: T is the type of the bits. In Numba, uint32 + uint32
is uint64, so every operation is wrapped. Helpers stand in this file because Numba's cache of
compiled code looks for changes here alone; those of `numba_bits.py` never change.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# What Numba compiles is not what it looks like to a type checker: intrinsics lose an argument.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from floatscope.rounding.grid import FAST_NEAREST, INDEX, STOCHASTIC
from floatscope.rounding.kernels.numba_bits import (
    as_bits,
    as_float,
    as_real,
    is_below,
    prefetch,
    random_word,
    store_past_caches,
    words,
)
from floatscope.rounding.receipt import NUM_COUNTS

CHUNK = 1 << 16
LINES, AHEAD = 64, 1024
"""Elements between two requests for memory, and how far ahead these look."""

MODE, DROP, NORMAL, FIRST_FIELD = (INDEX[n] for n in ("mode", "drop", "normal", "first_field"))
STEP, ONE_BY_STEP, ANCHOR = INDEX["step"], INDEX["one_by_step"], INDEX["anchor"]
LARGEST, LOWEST = INDEX["largest"], INDEX["lowest"]
NEGATIVE_ZERO, FLUSH, INWARD = (INDEX[n] for n in ("negative_zero", "flush", "inward"))
OVERFLOW, INFINITY, NAN = INDEX["overflow"], INDEX["infinity"], INDEX["nan"]
NEGATIVE, ZERO = INDEX["negative"], INDEX["zero"]

# Counted per call, in the order of receipt.COUNTS.
BEYOND, INFINITE, NANS, SATURATED, BECAME_NAN, RAISED, FLUSHED, LOST_SIGN = range(NUM_COUNTS)

u32, u64 = np.uint32, np.uint64


@njit(nogil=True, cache=True)
def finish(r, u, a, largest, lowest, sign, zero_sign):
    """The bits of a result from its magnitude r; whether it is beyond, became zero, lost its sign.

    What lies beyond is passed on as it came, a with the sign of u.
    """
    T = type(r)
    none = T(0)
    is_beyond = r > (lowest if u >= sign else largest)
    is_zero = r == none
    is_lost = is_zero & (u >= sign) & (zero_sign == none)
    bits = T((a if is_beyond else r) | T(u & (zero_sign if is_zero else sign)))
    return bits, T(is_beyond), T(is_zero & (a != none)), T(is_lost)


@njit(nogil=True, cache=True)
def nearest_of(u, drop, half_less, kept, normal, anchor, largest, lowest, sign, zero_sign):
    """One element to nearest, ties to even: what `finish` says of it."""
    T = type(u)
    a = T(u & T(~sign))
    odd = T(T(a >> drop) & T(1))
    r = T(T(T(a + half_less) + odd) & kept)
    on_grid = as_bits(as_float(a) + anchor - anchor)
    r = on_grid if a < normal else r
    return finish(r, u, a, largest, lowest, sign, zero_sign)


def _nearest(past_caches: bool) -> Any:
    @njit(nogil=True, cache=True)
    def nearest(x, out, g):
        """Nearest, ties to even; returns how many are beyond, became zero, lost their sign."""
        T = x.dtype.type
        one, none = T(1), T(0)
        sign = T(one << T(8 * x.itemsize - 1))
        drop, normal, largest = T(g[DROP]), T(g[NORMAL]), T(g[LARGEST])
        lowest = T(g[LOWEST])
        half_less = T(T(one << T(drop - one)) - one)
        kept = T(~T(T(one << drop) - one))
        zero_sign = sign if g[NEGATIVE_ZERO] else none
        anchor = as_float(T(g[ANCHOR]))
        beyond, flushed, lost = none, none, none
        whole = x.size // LINES * LINES
        for first in range(0, whole, LINES):
            for j in range(0, LINES, 64 // x.itemsize):
                prefetch(x, first + j + AHEAD)
            for j in range(LINES):
                r, is_beyond, is_flushed, is_lost = nearest_of(
                    x[first + j], drop, half_less, kept, normal, anchor, largest, lowest, sign,
                    zero_sign,
                )  # fmt: skip
                beyond, flushed = T(beyond + is_beyond), T(flushed + is_flushed)
                lost = T(lost + is_lost)
                if past_caches:
                    store_past_caches(out, first + j, r)
                else:
                    out[first + j] = r
        for i in range(whole, x.size):
            out[i], is_beyond, is_flushed, is_lost = nearest_of(
                x[i], drop, half_less, kept, normal, anchor, largest, lowest, sign, zero_sign
            )
            beyond, flushed = T(beyond + is_beyond), T(flushed + is_flushed)
            lost = T(lost + is_lost)
        return beyond, flushed, lost

    return nearest


nearest, nearest_past = _nearest(False), _nearest(True)


# How far a value is from its smaller neighbor is cut to 32 bits of the neighbors' distance. Above
# the smallest normal these are its lowest bits; below, the value is divided by the step, which is
# exact, or underflows far below the 32 bits. The plain loop stores past the caches, does not count
# what becomes zero, and serves formats with a negative zero.
def _one_of(all_bits: bool, plain: bool) -> Any:
    @njit(nogil=True, cache=True)
    def one_of(u, random, spare, drop, to_left, to_right, normal, step, steps_in_one, sign):
        """The magnitude that one element becomes, by 32 - spare of its random bits."""
        T = type(u)
        most, parts = as_real(T(1 << 31)), as_real(T(1 << 31)) * as_real(T(2))
        unit = T(T(1) << drop)
        a = T(u & T(~sign))
        rest = T(a & T(unit - T(1)))
        cut = u32(T(T(rest << to_left) >> to_right))
        steps = as_float(a) * steps_in_one
        whole = u32(steps if plain or steps < most else most)  # integers reach further
        on_grid = a < normal
        cut = u32((steps - as_real(T(whole))) * parts) if on_grid else cut
        up = random < cut if all_bits else is_below(random, cut, spare)
        r = T(T(a - rest) + (unit if up else T(0)))
        return as_bits(as_real(T(T(whole) + T(up))) * step) if on_grid else r

    return one_of


def _part_of(one_of: Any, plain: bool, num: int) -> Any:
    @njit(nogil=True, cache=True)
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
            for j in range(num):
                i = line + j
                u = x[i]
                random = random_word(u32(start + u32(i)), first, second)
                r = one_of(
                    u, random, spare, drop, to_left, to_right, normal, step, steps_in_one, sign
                )
                a = T(u & T(~sign))
                if plain:
                    beyond = T(beyond + T(r > largest))
                    store_past_caches(out, i, T((a if r > largest else r) | T(u & sign)))
                else:
                    found = finish(r, u, a, largest, lowest, sign, zero_sign)
                    out[i], beyond = found[0], T(beyond + found[1])
                    flushed, lost = T(flushed + found[2]), T(lost + found[3])
        return beyond, flushed, lost

    return part


def _stochastic(all_bits: bool, plain: bool) -> Any:
    one_of = _one_of(all_bits, plain)
    lines, rest = _part_of(one_of, plain, LINES), _part_of(one_of, plain, 1)

    @njit(nogil=True, cache=True)
    def stochastic(x, out, g, index, key, spare):
        """Stochastic rounding with 32 - spare random bits; returns what `nearest` does."""
        first, second = words(key, u64(index >> u64(32)))
        whole, start = x.size // LINES * LINES, u32(index)
        a, b, c = lines(x[:whole], out[:whole], g, start, first, second, spare)
        start = u32(start + u32(whole))
        d, e, f = rest(x[whole:], out[whole:], g, start, first, second, spare)
        return type(a)(a + d), type(b)(b + e), type(c)(c + f)

    return stochastic


stochastic, few_bits = _stochastic(True, False), _stochastic(False, False)
stochastic_plain = _stochastic(True, True)


@njit(nogil=True, cache=True)
def takes_larger(mode, rest, half, odd, negative):
    """Whether the neighbor of larger magnitude is taken, in the modes without chance."""
    inexact = rest != type(rest)(0)
    if mode == 0:
        return (rest > half) | ((rest == half) & odd & inexact)
    if mode == 1:
        return (rest >= half) & inexact
    if mode == 3:
        return inexact & (not negative)
    if mode == 4:
        return inexact & negative
    if mode == 5:
        return inexact & (not odd)
    return False


@njit(nogil=True, cache=True)
def without_chance(x, out, g):
    """Every mode but stochastic, from the explicit significand; returns what `nearest` does."""
    T = x.dtype.type
    one, none = T(1), T(0)
    bits = T(8 * x.itemsize)
    fraction = T(23) if bits == T(32) else T(52)
    sign, hidden = T(one << T(bits - one)), T(one << fraction)
    drop, normal, mode = T(g[DROP]), T(g[NORMAL]), int(g[MODE])
    largest, lowest = T(g[LARGEST]), T(g[LOWEST])
    zero_sign = sign if g[NEGATIVE_ZERO] else none
    step = as_float(T(g[STEP]))
    first_field, longest = T(g[FIRST_FIELD]), T(bits - one)
    beyond, flushed, lost = none, none, none
    for i in range(x.size):
        u = x[i]
        a = T(u & T(~sign))
        field = T(a >> fraction)
        significand = T(T(a & T(hidden - one)) | (hidden if field > none else none))
        field = field if field > none else one
        short = T(first_field - field) if field < first_field else none
        on_grid = a < normal
        shift = T(drop + short) if on_grid else drop
        shift = shift if shift < longest else longest  # all of them lost then, and below one half
        unit = T(one << shift)
        rest = T(significand & T(unit - one))
        whole = T(significand >> shift)
        up = takes_larger(mode, rest, T(unit >> one), (whole & one) == one, u >= sign)
        r = T(T(a - rest) + (unit if up else none))
        r = as_bits(as_real(T(whole + T(up))) * step) if on_grid else r
        r, is_beyond, is_flushed, is_lost = finish(r, u, a, largest, lowest, sign, zero_sign)
        beyond, flushed, lost = T(beyond + is_beyond), T(flushed + is_flushed), T(lost + is_lost)
        out[i] = r
    return beyond, flushed, lost


@njit(nogil=True, cache=True)
def repair(out, g, counts):
    """Look again, one by one, at what lies beyond the largest value: overflow, infinity, NaN."""
    T = out.dtype.type
    one = T(1)
    bits = T(8 * out.itemsize)
    sign = T(one << T(bits - one))
    infinity = T(0x7F800000) if bits == T(32) else T(0x7FF0000000000000)
    largest, lowest = T(g[LARGEST]), T(g[LOWEST])
    quiet = T(infinity | T(one << (T(22) if bits == T(32) else T(51))))
    for i in range(out.size):
        a = T(out[i] & T(~sign))
        s = T(out[i] & sign)
        if a <= (lowest if s else largest):
            continue
        if a > infinity:
            counts[NANS] += 1
            if g[NAN] == 0:
                out[i] = T(quiet | s)
            elif g[NAN] == 1:
                out[i] = largest
            else:
                out[i] = T(~s & sign) if g[NAN] == 3 else T(0)
            continue
        counts[INFINITE] += a == infinity
        if s and g[NEGATIVE] > 2:  # `unsigned` decides
            continue
        policy = g[INFINITY]
        if a < infinity:
            policy = g[OVERFLOW]
            counts[BEYOND] += 1
            if (int(g[INWARD]) >> (1 if s else 0)) & 1:
                policy = u64(0)
        if policy == 0:
            counts[SATURATED] += 1
            out[i] = T((lowest if s else largest) | s)
        elif policy == 1:
            out[i] = T(infinity | s)
        else:
            out[i] = T(quiet | s)
            counts[BECAME_NAN if policy == 2 else RAISED] += 1


@njit(nogil=True, cache=True)
def unsigned(x, out, g, counts):
    """Formats without zero and sign: zeros, negatives and what rounded to zero. x is not out."""
    T = x.dtype.type
    one, none = T(1), T(0)
    bits = T(8 * x.itemsize)
    sign = T(one << T(bits - one))
    infinity = T(0x7F800000) if bits == T(32) else T(0x7FF0000000000000)
    quiet = T(0x7FC00000) if bits == T(32) else T(0x7FF8000000000000)
    smallest = T(g[STEP])
    for i in range(x.size):
        a = T(x[i] & T(~sign))
        r = T(out[i] & T(~sign))
        if a > infinity:  # NaN was repaired already
            continue
        is_zero = a == none
        is_negative = x[i] >= sign and not is_zero and g[NEGATIVE] != 2
        policy = g[ZERO] if is_zero else g[NEGATIVE] - u64(2) if is_negative else u64(0)
        if policy == 0 or policy == 1:
            out[i] = smallest if policy == 1 or r == none else r
        else:
            out[i] = quiet
            counts[BECAME_NAN if policy == 2 else RAISED] += 1


@njit(nogil=True, cache=True)
def flush_subnormals(out, g):
    """Subnormal results become zeros of their sign; returns how many did, how many lost it."""
    T = out.dtype.type
    sign = T(T(1) << T(8 * out.itemsize - 1))
    zero_sign = sign if g[NEGATIVE_ZERO] else T(0)
    smallest_normal = T(g[FLUSH])
    flushed, lost = T(0), T(0)
    for i in range(out.size):
        a = T(out[i] & T(~sign))
        subnormal = (a < smallest_normal) & (a != T(0))
        flushed = T(flushed + T(subnormal))
        lost = T(lost + T(subnormal & ((out[i] & sign) != (out[i] & zero_sign))))
        out[i] = T(out[i] & zero_sign) if subnormal else out[i]
    return flushed, lost


@njit(nogil=True, cache=True)
def with_one_key(x, out, g, index, key, spare, stream, counted):
    """The stochastic loop for so many bits and such an output."""
    if spare:
        return few_bits(x, out, g, index, key, spare)
    if stream and not counted and g[NEGATIVE_ZERO]:
        return stochastic_plain(x, out, g, index, key, spare)
    return stochastic(x, out, g, index, key, spare)


@njit(nogil=True, cache=True)
def by_chance(x, out, g, index, key, spare, stream, counted):
    """Two parts where the upper half of the index changes, and the words of the key with it."""
    head = min(x.size, np.int64(1 << 32) - np.int64(u32(index)))
    if head == x.size:
        return with_one_key(x, out, g, index, key, spare, stream, counted)
    a, b, c = with_one_key(x[:head], out[:head], g, index, key, spare, False, counted)
    there = u64(index + u64(head))
    d, e, f = with_one_key(x[head:], out[head:], g, there, key, spare, False, counted)
    return type(a)(a + d), type(b)(b + e), type(c)(c + f)


@njit(nogil=True, cache=True)
def round_chunk(x, out, g, index, key, spare, counts, stream, counted):
    """Round one chunk; `index` is the logical position of its first element.

    Unless `counted`, zeros and signs that were lost may go uncounted, where that saves time.
    """
    if g[MODE] == FAST_NEAREST:
        beyond, flushed, lost = nearest_past(x, out, g) if stream else nearest(x, out, g)
    elif g[MODE] == STOCHASTIC:
        beyond, flushed, lost = by_chance(x, out, g, index, key, spare, stream, counted)
    else:
        beyond, flushed, lost = without_chance(x, out, g)
    if beyond:
        repair(out, g, counts)
    if g[ZERO]:
        unsigned(x, out, g, counts)
        return
    counts[FLUSHED] += flushed
    counts[LOST_SIGN] += lost
    if g[FLUSH]:
        flushed, lost = flush_subnormals(out, g)
        counts[FLUSHED] += flushed
        counts[LOST_SIGN] += lost


@njit(nogil=True, cache=True)
def round_span(x, out, start, stop, offset, g, key, spare, stream, counts, counted):
    """Round x[start:stop] into out; `offset` is the logical index of x[0]."""
    for first in range(start, stop, CHUNK):
        last = min(first + CHUNK, stop)
        xs, ys, at = x[first:last], out[first:last], u64(offset + u64(first))
        round_chunk(xs, ys, g, at, key, spare, counts, stream, counted)
