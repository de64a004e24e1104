"""Rounding to nearest, ties to even, on the CPU: the loops, and which of them a format takes.

Each returns how many elements are beyond the largest value, became zero, and lost their sign; the
uncounted ones only whether any is beyond. What is beyond is passed on as it came. Loops that store
past the caches are functions of their own, because the compiler believes what they say of
alignment.
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
    finish,
    prefetch,
    shift_right,
    store_past_caches,
    widest_vectors,
)

LINES, AHEAD = 64, 1024
"""Elements between two requests for memory, and how far ahead these look."""

DROP, NORMAL, ANCHOR = INDEX["drop"], INDEX["normal"], INDEX["anchor"]
LARGEST, LOWEST = INDEX["largest"], INDEX["lowest"]
NEGATIVE_ZERO, INTEGER = INDEX["negative_zero"], INDEX["integer"]

u64 = np.uint64


@njit(nogil=True)
def nearest_of(u, drop, half_less, kept, normal, anchor, largest, lowest, sign, zero_sign):
    """One element to nearest, ties to even: what `finish` says of it."""
    T = type(u)
    a = T(u & T(~sign))
    odd = T(shift_right(a, drop) & T(1))
    r = T(T(T(a + half_less) + odd) & kept)
    on_grid = as_bits(as_float(a) + anchor - anchor)
    r = on_grid if a < normal else r
    return finish(r, u, a, largest, lowest, sign, zero_sign)


def _nearest(past_caches: bool) -> Any:
    @njit(nogil=True)
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
                i = u64(first + j)
                r, is_beyond, is_flushed, is_lost = nearest_of(
                    x[i], drop, half_less, kept, normal, anchor, largest, lowest, sign, zero_sign
                )
                beyond, flushed = T(beyond + is_beyond), T(flushed + is_flushed)
                lost = T(lost + is_lost)
                if past_caches:
                    store_past_caches(out, i, r)
                else:
                    out[i] = r
        for i in range(whole, x.size):
            out[i], is_beyond, is_flushed, is_lost = nearest_of(
                x[i], drop, half_less, kept, normal, anchor, largest, lowest, sign, zero_sign
            )
            beyond, flushed = T(beyond + is_beyond), T(flushed + is_flushed)
            lost = T(lost + is_lost)
        return beyond, flushed, lost

    return nearest


nearest, nearest_past = _nearest(False), _nearest(True)


@njit(nogil=True)
def anchored_of(u, drop, anchor, limit, below, exponent, sign, zero_sign):
    """One element to nearest by its anchor: the bits, its rounded magnitude, whether beyond.

    Adding 1.5 * 2^drop times the element's octave, or the format's anchor if that is more, leaves
    as many bits as the format has, and the processor rounds; `drop` and `anchor` are meant for the
    bits of that number. What lies so far out that it has no anchor comes out as it is, or as NaN,
    and is beyond.
    """
    T = type(u)
    far = as_float(max(T(T(u & exponent) + drop), anchor))
    r = as_bits(as_float(u) + far - far)
    a = T(r & T(~sign))
    is_beyond = a > (T(limit + below) if u >= sign else limit)
    return u if is_beyond else T(r | T(u & zero_sign)), a, is_beyond


def _anchored(past_caches: bool, counted: bool) -> Any:
    @njit(nogil=True)
    def anchored(x, out, g):
        """`nearest` for the formats that `to_nearest` gives it.

        Uncounted, it only says whether any element is beyond, and serves symmetrical formats.
        """
        T = x.dtype.type
        one, none = T(1), T(0)
        bits = T(8 * x.itemsize)
        sign = T(one << T(bits - one))
        exponent = T(0x7F800000) if bits == T(32) else T(0x7FF0000000000000)
        half = T(one << (T(22) if bits == T(32) else T(51)))
        drop, anchor = T(T(T(g[DROP]) * T(half + half)) + half), T(T(g[ANCHOR]) + half)
        limit = T(g[LARGEST])
        below = T(T(g[LOWEST]) - limit) if counted else none
        zero_sign = sign if g[NEGATIVE_ZERO] else none
        beyond, flushed, lost = none, none, none
        whole = x.size // LINES * LINES
        for first in range(0, whole, LINES):
            for j in range(0, LINES, 64 // x.itemsize):
                prefetch(x, first + j + AHEAD)
            for j in range(LINES):
                i = u64(first + j)
                u = x[i]
                r, a, is_beyond = anchored_of(
                    u, drop, anchor, limit, below, exponent, sign, zero_sign
                )
                if counted:
                    beyond = T(beyond + T(is_beyond))
                    is_zero = a == none
                    flushed = T(flushed + T(is_zero & (T(u & T(~sign)) != none)))
                    lost = T(lost + T(is_zero & (u >= sign)))
                else:
                    beyond = max(beyond, a)
                if past_caches:
                    store_past_caches(out, i, r)
                else:
                    out[i] = r
        rest = nearest(x[whole:], out[whole:], g)
        if not counted:
            beyond = T(beyond > limit)
        lost = none if zero_sign else lost
        return T(beyond + rest[0]), T(flushed + rest[1]), T(lost + rest[2])

    return anchored


anchored, anchored_past = _anchored(False, True), _anchored(True, True)
plain, plain_past = _anchored(False, False), _anchored(True, False)


def _bitwise(past_caches: bool) -> Any:
    @njit(nogil=True)
    def bitwise(x, out, g):
        """The same of symmetrical formats that reach as far as the carrier: only bits are lost."""
        widest_vectors()
        T = x.dtype.type
        one, none = T(1), T(0)
        sign = T(one << T(8 * x.itemsize - 1))
        drop, limit = T(g[DROP]), T(g[LARGEST])
        half_less, kept = T(T(one << T(drop - one)) - one), T(~T(T(one << drop) - one))
        beyond = none
        whole = x.size // LINES * LINES
        for first in range(0, whole, LINES):
            for j in range(0, LINES, 64 // x.itemsize):
                prefetch(x, first + j + AHEAD)
            for j in range(LINES):
                i = u64(first + j)
                u = x[i]
                a = T(u & T(~sign))
                odd = T(shift_right(a, drop) & one)
                r = T(T(T(a + half_less) + odd) & kept)
                beyond = max(beyond, r)
                r = T((a if r > limit else r) | T(u & sign))
                if past_caches:
                    store_past_caches(out, i, r)
                else:
                    out[i] = r
        rest = nearest(x[whole:], out[whole:], g)
        return T(T(beyond > limit) + rest[0]), none, none

    return bitwise


bitwise, bitwise_past = _bitwise(False), _bitwise(True)


@njit(nogil=True)
def to_nearest(x, out, g, stream, counted):
    """The fastest loop to nearest for a format and such an output.

    An anchor must be finite for the largest value, and 1.5 times it not leave its octave by adding
    an element: with two bits to drop it does not.
    """
    fraction, top = (u64(23), u64(254)) if x.itemsize == 4 else (u64(52), u64(2046))
    top_anchor = u64(g[LARGEST] >> fraction) + g[DROP]
    uncounted = not counted and g[LARGEST] == g[LOWEST]
    if uncounted and g[NORMAL] == u64(0) and g[NEGATIVE_ZERO]:
        return bitwise_past(x, out, g) if stream else bitwise(x, out, g)
    if top_anchor > top or (g[DROP] < 2 and not g[INTEGER]):
        return nearest_past(x, out, g) if stream else nearest(x, out, g)
    if not uncounted:
        return anchored_past(x, out, g) if stream else anchored(x, out, g)
    return plain_past(x, out, g) if stream else plain(x, out, g)
