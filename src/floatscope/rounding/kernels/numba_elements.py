"""Rounding on the CPU: one fused pass over the bits, as fast as memory allows.

Values pass through in chunks that fit the second-level cache. A chunk is rounded by a loop without
branches, which the compiler turns into vector instructions; what lies beyond the largest value is
passed on as it is for a second, scalar look, and is rare. Large outputs are stored past the caches:
a plain store would first read the line that it overwrites; loops that do so are functions of their
own, because the compiler believes what they say of alignment. Input and output may be the same.

The kernels are serial; `numba_jobs.py` makes regions of them, which `threads.py` shares out.
They are written for uint32 and uint64 alike: T is the type of the bits. In Numba, uint32 + uint32
is uint64, so every operation is wrapped, and shifts are of 64 bits whatever is done: those in loops
are `shift_left` and `shift_right`. Such loops use unsigned places, because a signed one may be
negative, which would count from the end.

Rounding to nearest is in `numba_nearest.py`, stochastic rounding in `numba_chance.py`.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# What Numba compiles is not what it looks like to a type checker: intrinsics lose an argument.

from __future__ import annotations

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.grid import FAST_NEAREST, INDEX, STOCHASTIC
from floatscope.rounding.kernels.numba_bits import (
    as_bits,
    as_float,
    as_real,
    finish,
    widest_vectors,
)
from floatscope.rounding.kernels.numba_chance import by_chance
from floatscope.rounding.kernels.numba_nearest import to_nearest
from floatscope.rounding.receipt import NUM_COUNTS

CHUNK = 1 << 16

MODE, DROP, NORMAL, FIRST_FIELD = (INDEX[n] for n in ("mode", "drop", "normal", "first_field"))
STEP, LARGEST, LOWEST = INDEX["step"], INDEX["largest"], INDEX["lowest"]
NEGATIVE_ZERO, FLUSH, INWARD = (INDEX[n] for n in ("negative_zero", "flush", "inward"))
OVERFLOW, INFINITY, NAN = INDEX["overflow"], INDEX["infinity"], INDEX["nan"]
NEGATIVE, ZERO = INDEX["negative"], INDEX["zero"]

# Counted per call, in the order of receipt.COUNTS.
BEYOND, INFINITE, NANS, SATURATED, BECAME_NAN, RAISED, FLUSHED, LOST_SIGN = range(NUM_COUNTS)

u32, u64 = np.uint32, np.uint64


@njit(nogil=True)
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


@njit(nogil=True)
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


@njit(nogil=True)
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


@njit(nogil=True)
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


@njit(nogil=True)
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


@njit(nogil=True)
def round_chunk(x, out, g, index, key, spare, counts, stream, counted):
    """Round one chunk; `index` is the logical position of its first element.

    Unless `counted`, zeros and signs that were lost may go uncounted, where that saves time.
    """
    widest_vectors()
    if g[MODE] == FAST_NEAREST:
        beyond, flushed, lost = to_nearest(x, out, g, stream, counted)
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


@njit(nogil=True)
def round_span(x, out, offset, g, key, spare, stream, counts, counted):
    """Round x into out; `offset` is the logical index of x[0]."""
    widest_vectors()
    for first in range(0, x.size, CHUNK):
        last = min(first + CHUNK, x.size)
        xs, ys, at = x[first:last], out[first:last], u64(offset + u64(first))
        round_chunk(xs, ys, g, at, key, spare, counts, stream, counted)
