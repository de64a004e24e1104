"""Elements of blocks on the CPU, to nearest and uncounted: the fastest loops, one for each width.

A loop knows its width, so that the compiler unrolls it; those that store past the caches are
functions of their own, because the compiler believes what they say of alignment.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import numpy as np
from numba import njit

from floatscope.rounding.grid import INDEX
from floatscope.rounding.kernels.numba_bits import as_bits, as_float, prefetch, store_past_caches

LINES = 64
"""Elements between two requests for memory."""

DROP, ANCHOR = INDEX["drop"], INDEX["anchor"]
LARGEST, LOWEST, NEGATIVE_ZERO = INDEX["largest"], INDEX["lowest"], INDEX["negative_zero"]

u32, u64, f32 = np.uint32, np.uint64, np.float32
SIGN, INFINITY = u32(0x8000_0000), u32(0x7F80_0000)
HALF, NONE = u32(0x0040_0000), u32(0)


@njit(nogil=True, cache=True, error_model="numpy")
def limits_of(g):
    """What `anchored_of` needs of the grid."""
    drop = u32(u32(u32(g[DROP]) << u32(23)) | HALF)
    largest, lowest = as_float(u32(g[LARGEST])), as_float(u32(u32(g[LOWEST]) | SIGN))
    return drop, u32(u32(g[ANCHOR]) | HALF), largest, lowest, SIGN if g[NEGATIVE_ZERO] else NONE


@njit(nogil=True, cache=True, error_model="numpy")
def anchored_of(t, scale, drop, anchor, largest, lowest, zero_sign):
    """A scaled element to nearest even, and scaled back.

    As in `numba_elements.py`, the processor rounds what is left after adding 1.5 * 2^drop times the
    octave, or the format's anchor if that is more. Clipping comes first, and NaN passes it.
    """
    v = largest if largest < t else t
    v = lowest if lowest > v else v
    far = as_float(max(u32(u32(as_bits(v) & INFINITY) + drop), anchor))
    r = u32(as_bits(f32(f32(v + far) - far)) | u32(as_bits(t) & zero_sign))
    return as_bits(f32(as_float(r) * scale))


def _plain(width, divide, past_caches=False):
    """Elements to nearest even, uncounted, in blocks of a width that the compiler unrolls."""

    @njit(nogil=True, cache=True, error_model="numpy")
    def plain(x, out, encode, scale, ahead, g):
        drop, anchor, largest, lowest, zero_sign = limits_of(g)
        for b in range(x.size // width):
            e, s = encode[b], scale[b]
            for j in range(0, width, 16):  # fetch what is read next: the next segment
                prefetch(x, ahead + b * width + j)
            for j in range(width):
                i = u64(b * width + j)
                value = as_float(x[i])
                t = f32(value / e) if divide else f32(value * e)
                y = anchored_of(t, s, drop, anchor, largest, lowest, zero_sign)
                if past_caches:
                    store_past_caches(out, i, y)
                else:
                    out[i] = y

    return plain


def _apart(divide, past_caches=False):
    """The same, each element with its own factors."""

    @njit(nogil=True, cache=True, error_model="numpy")
    def apart(x, out, encode, scale, ahead, g):
        drop, anchor, largest, lowest, zero_sign = limits_of(g)
        whole = x.size // LINES * LINES
        for line in range(0, whole, LINES):
            for j in range(0, LINES, 16):
                prefetch(x, ahead + line + j)
            for j in range(LINES):
                i = u64(line + j)
                value, e = as_float(x[i]), encode[i]
                t = f32(value / e) if divide else f32(value * e)
                y = anchored_of(t, scale[i], drop, anchor, largest, lowest, zero_sign)
                if past_caches:
                    store_past_caches(out, i, y)
                else:
                    out[i] = y
        for i in range(whole, x.size):
            value, e = as_float(x[i]), encode[i]
            t = f32(value / e) if divide else f32(value * e)
            out[i] = anchored_of(t, scale[i], drop, anchor, largest, lowest, zero_sign)

    return apart


def _wide(divide):
    """The same in blocks of whole lines, however many."""

    @njit(nogil=True, cache=True, error_model="numpy")
    def wide(x, out, encode, scale, width, ahead, g):
        drop, anchor, largest, lowest, zero_sign = limits_of(g)
        for b in range(x.size // width):
            e, s = encode[b], scale[b]
            for line in range(b * width, (b + 1) * width, LINES):
                for j in range(0, LINES, 16):
                    prefetch(x, ahead + line + j)
                for j in range(LINES):
                    i = u64(line + j)
                    value = as_float(x[i])
                    t = f32(value / e) if divide else f32(value * e)
                    out[i] = anchored_of(t, s, drop, anchor, largest, lowest, zero_sign)

    return wide


plain_1, plain_16, plain_32 = _apart(False), _plain(16, False), _plain(32, False)
plain_wide, divided_1, divided_wide = _wide(False), _apart(True), _wide(True)
past_1, past_16, past_32 = _apart(False, True), _plain(16, False, True), _plain(32, False, True)


@njit(nogil=True, cache=True, error_model="numpy")
def past_row(x, out, encode, scale, width, ahead, g):
    """`plain_row` for outputs that are stored past the caches, in the widths that gain most."""
    done = x.size // width * width
    if width == 1:
        past_1(x, out, encode, scale, ahead, g)
    elif width == 16:
        past_16(x[:done], out[:done], encode, scale, ahead, g)
    else:
        past_32(x[:done], out[:done], encode, scale, ahead, g)
    return done


@njit(nogil=True, cache=True, error_model="numpy")
def plain_row(x, out, encode, scale, width, divide, ahead, g):
    """As many elements of a row as a loop of known width takes; returns how many these are."""
    done = x.size // width * width
    if width == 1 and divide:
        divided_1(x, out, encode, scale, ahead, g)
    elif width == 1:
        plain_1(x, out, encode, scale, ahead, g)
    elif width % LINES == 0 and divide:
        divided_wide(x, out, encode, scale, width, ahead, g)
    elif width % LINES == 0:
        plain_wide(x, out, encode, scale, width, ahead, g)
    elif width == 16 and not divide:
        plain_16(x, out, encode, scale, ahead, g)
    elif width == 32 and not divide:
        plain_32(x, out, encode, scale, ahead, g)
    else:
        done = 0
    return done
