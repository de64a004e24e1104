"""Rounding to codes on the CPU.

To nearest, a code falls out of the rounding on the way. Everything else is rounded to values, chunk
by chunk, and then encoded.

The rounding is that of `numba_elements.py` and what it calls.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.grid import FAST_NEAREST, INDEX
from floatscope.rounding.kernels.numba_bits import as_bits, as_float, prefetch, shift_right
from floatscope.rounding.kernels.numba_elements import (
    CHUNK,
    FLUSH,
    FLUSHED,
    LOST_SIGN,
    round_chunk,
)

LINES, AHEAD = 256, 1024
"""Elements between two requests for memory: more than for values, because codes are narrow."""


CODE_SHIFT, WIDTH, INTEGER = (INDEX[n] for n in ("code_shift", "width", "integer"))
INFINITY_CODE, NAN_CODE = INDEX["infinity_code"], INDEX["nan_code"]
MODE, DROP, NORMAL, ANCHOR = (INDEX[n] for n in ("mode", "drop", "normal", "anchor"))
LARGEST, NEGATIVE_ZERO, ZERO = (INDEX[n] for n in ("largest", "negative_zero", "zero"))

u64 = np.uint64


@njit(nogil=True)
def codes_of(values, out, g):
    """Codes of values that the format holds."""
    T, C = values.dtype.type, out.dtype.type
    one, none = T(1), T(0)
    bits = T(8 * values.itemsize)
    sign = T(one << T(bits - one))
    infinity = T(0x7F800000) if bits == T(32) else T(0x7FF0000000000000)
    drop, normal, shift = T(g[DROP]), T(g[NORMAL]), T(g[CODE_SHIFT])
    anchor_bits = T(g[ANCHOR])
    anchor = as_float(anchor_bits)
    up, down = T(bits - one), T(g[WIDTH] - u64(1))
    two_complement = g[INTEGER] != u64(0)
    special = False
    for i in range(values.size):
        u = values[i]
        a = T(u & T(~sign))
        code = T(T(a >> drop) - shift)
        code = T(as_bits(as_float(a) + anchor) - anchor_bits) if a < normal else code
        special |= a >= infinity
        negative = T(u >> up)
        signed = T(code | T(negative << down))
        out[i] = C(T(none - code) if two_complement and negative else signed)
    if special:
        for i in range(values.size):
            u = values[i]
            a = T(u & T(~sign))
            if a == infinity:
                out[i] = C(g[INFINITY_CODE] | u64(u64(T(u >> up)) << u64(down)))
            elif a > infinity:
                out[i] = C(g[NAN_CODE] | u64(u64(T(u >> up)) << u64(down)))


def _encode_nearest(plain: bool, num: int) -> Any:
    @njit(nogil=True)
    def encode_nearest(x, out, g):
        """Codes to nearest even; how many are beyond the largest value, became zero, lost a sign.

        The codes are only right if none lies beyond. The plain loop only says whether any does, and
        serves formats with a negative zero.
        """
        T, C = x.dtype.type, out.dtype.type
        one, none = T(1), T(0)
        sign = T(one << T(8 * x.itemsize - 1))
        drop, normal = T(g[DROP]), T(g[NORMAL])
        largest = T(T(T(g[LARGEST]) >> drop) - T(g[CODE_SHIFT]))
        half_less = T(T(one << T(drop - one)) - one)
        anchor_bits, shift = T(g[ANCHOR]), T(g[CODE_SHIFT])
        anchor = as_float(anchor_bits)
        down = T(T(8 * x.itemsize) - T(g[WIDTH]))
        kept = T(~none) if g[NEGATIVE_ZERO] else none
        beyond, flushed, lost = none, none, none
        for line in range(0, x.size, num):
            for j in range(0, num, 64 // x.itemsize):
                prefetch(x, line + j + AHEAD)
            for j in range(num):
                i = u64(line + j)
                u = x[i]
                a = T(u & T(~sign))
                odd = T(shift_right(a, drop) & one)
                r = T(T(a + half_less) + odd)
                on_grid = as_bits(as_float(a) + anchor)
                is_normal = a >= normal
                code = T(shift_right(r, drop) - shift) if is_normal else T(on_grid - anchor_bits)
                signed = shift_right(T(u & sign), down)
                if plain:
                    beyond = max(beyond, code)
                else:
                    beyond = T(beyond + T(code > largest))
                    is_zero = code == none
                    flushed = T(flushed + T(is_zero & (a != none)))
                    lost = T(lost + T(is_zero & (u >= sign)))
                    signed = T(signed & (kept if is_zero else T(~none)))
                out[i] = C(code | signed)
        if plain:
            beyond = T(beyond > largest)
        return beyond, flushed, lost

    return encode_nearest


encode_counted, encode_plain = _encode_nearest(False, LINES), _encode_nearest(True, LINES)
encode_rest = _encode_nearest(False, 1)


@njit(nogil=True)
def encode_span(x, out, offset, g, key, spare, stream, counts, counted):
    """Round x and write the codes, through the caches; `offset` is the logical index of x[0]."""
    plain = g[MODE] == FAST_NEAREST and not (g[INTEGER] or g[FLUSH] or g[ZERO])
    buffer = np.empty(CHUNK, x.dtype)
    mask = u64((u64(1) << g[WIDTH]) - u64(1))
    for first in range(0, x.size, CHUNK):
        last = min(first + CHUNK, x.size)
        chunk, codes = buffer[: last - first], out[first:last]
        if plain:
            xs, uncounted = x[first:last], not counted and g[NEGATIVE_ZERO]
            whole = xs.size // LINES * LINES
            lines, into = xs[:whole], codes[:whole]
            one = encode_plain(lines, into, g) if uncounted else encode_counted(lines, into, g)
            other = encode_rest(xs[whole:], codes[whole:], g)
            if not (one[0] or other[0]):
                counts[FLUSHED] += one[1] + other[1]
                counts[LOST_SIGN] += 0 if g[NEGATIVE_ZERO] else one[2] + other[2]
                continue
        at = u64(offset + u64(first))
        round_chunk(x[first:last], chunk, g, at, key, spare, counts, False, True)
        codes_of(chunk, codes, g)
        if g[INTEGER] and g[WIDTH] < u64(8 * out.itemsize):
            for i in range(codes.size):
                codes[i] &= out.dtype.type(mask)
