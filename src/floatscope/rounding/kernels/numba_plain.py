"""Elements of blocks on the CPU, uncounted: the fastest loops, one for each width.

A loop knows its width, so that the compiler unrolls it; those that store past the caches are
functions of their own, because the compiler believes what they say of alignment.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.grid import INDEX
from floatscope.rounding.kernels.numba_bits import (
    as_bits,
    as_float,
    prefetch,
    random_word,
    store_past_caches,
    widest_vectors,
    words,
)
from floatscope.rounding.kernels.numba_chance import by_steps

LINES, LINE = 64, 16
"""Elements between two requests for memory: some lines, and one."""

DROP, NORMAL, ANCHOR = INDEX["drop"], INDEX["normal"], INDEX["anchor"]
LARGEST, LOWEST, NEGATIVE_ZERO = INDEX["largest"], INDEX["lowest"], INDEX["negative_zero"]

u32, u64, f32 = np.uint32, np.uint64, np.float32
SIGN, MAGNITUDE, INFINITY = u32(0x8000_0000), u32(0x7FFF_FFFF), u32(0x7F80_0000)
HALF, NONE, ONE, FRACTION = u32(0x0040_0000), u32(0), u32(1), u32(23)


@njit(nogil=True, error_model="numpy")
def limits_of(g):
    """What `anchored_of` needs of the grid."""
    drop = u32(u32(u32(g[DROP]) << u32(23)) | HALF)
    largest, lowest = as_float(u32(g[LARGEST])), as_float(u32(u32(g[LOWEST]) | SIGN))
    return drop, u32(u32(g[ANCHOR]) | HALF), largest, lowest, SIGN if g[NEGATIVE_ZERO] else NONE


@njit(nogil=True, error_model="numpy")
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

    @njit(nogil=True, error_model="numpy")
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
    """The same, each column with its own factors."""

    @njit(nogil=True, error_model="numpy")
    def apart(x, out, first, rows, columns, stride, encode, scale, ahead, g):
        """So many rows and columns, from `first` on; rows are `stride` apart."""
        drop, anchor, largest, lowest, zero_sign = limits_of(g)
        whole = columns // LINES * LINES
        for start in range(first, first + rows * stride, stride):
            for line in range(0, whole, LINES):
                for j in range(0, LINES, 16):
                    prefetch(x, start + ahead + line + j)
                for j in range(LINES):
                    i, c = u64(start + line + j), u64(line + j)
                    value, e = as_float(x[i]), encode[c]
                    t = f32(value / e) if divide else f32(value * e)
                    y = anchored_of(t, scale[c], drop, anchor, largest, lowest, zero_sign)
                    if past_caches:
                        store_past_caches(out, i, y)
                    else:
                        out[i] = y
            for c in range(whole, columns):
                i = u64(start + c)
                value, e = as_float(x[i]), encode[c]
                t = f32(value / e) if divide else f32(value * e)
                out[i] = anchored_of(t, scale[c], drop, anchor, largest, lowest, zero_sign)

    return apart


def _wide(divide):
    """The same in blocks of whole lines, however many."""

    @njit(nogil=True, error_model="numpy")
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


def _by_chance(width):
    """Stochastic, in blocks of a width that the compiler unrolls, or each with its own factors."""
    num = max(width, LINE)

    @njit(nogil=True, error_model="numpy")
    def by_chance(x, out, encode, scale, ahead, g, start, stride, first, second):
        widest_vectors()
        normal, largest = u32(g[NORMAL]), u32(g[LARGEST])
        kept = u32(u32(FRACTION - u32(g[DROP])) << FRACTION)
        for line in range(0, x.size // num * num, num):
            for j in range(0, num, 16):
                prefetch(x, ahead + line + j)
            b, step = line // num, stride if width == 1 else ONE
            at = u32(start + u32(u32(line) * step))
            for j in range(num):
                i = u64(line + j)
                e, s = (encode[i], scale[i]) if width == 1 else (encode[b], scale[b])
                t = as_bits(f32(as_float(x[i]) * e))
                a = u32(t & MAGNITUDE)
                random = random_word(u32(at + u32(u32(j) * step)), first, second)
                r = by_steps(a, random, kept, normal, INFINITY)
                r = a if a > INFINITY else min(r, largest)
                out[i] = as_bits(f32(as_float(u32(r | u32(t & SIGN))) * s))

    return by_chance


chance_1, chance_16, chance_32 = map(_by_chance, (1, 16, 32))
plain_1, plain_16, plain_32 = _apart(False), _plain(16, False), _plain(32, False)
plain_wide, divided_1, divided_wide = _wide(False), _apart(True), _wide(True)
past_1, past_16, past_32 = _apart(False, True), _plain(16, False, True), _plain(32, False, True)


@njit(nogil=True, error_model="numpy")
def plain_columns(x, out, first, rows, columns, stride, encode, scale, divide, past, ahead, g):
    """Elements that are scaled column by column, of any number; `past` the caches or not."""
    if past:
        past_1(x, out, first, rows, columns, stride, encode, scale, ahead, g)
    elif divide:
        divided_1(x, out, first, rows, columns, stride, encode, scale, ahead, g)
    else:
        plain_1(x, out, first, rows, columns, stride, encode, scale, ahead, g)


@njit(nogil=True, error_model="numpy")
def past_row(x, out, encode, scale, width, ahead, g):
    """`plain_row` for outputs that are stored past the caches, in the widths that gain most."""
    done = x.size // width * width
    if width == 16:
        past_16(x[:done], out[:done], encode, scale, ahead, g)
    else:
        past_32(x[:done], out[:done], encode, scale, ahead, g)
    return done


@njit(nogil=True, error_model="numpy")
def plain_row(x, out, encode, scale, width, divide, ahead, g):
    """As many elements of a row as a loop of known width takes; returns how many these are."""
    done = x.size // width * width
    if width % LINES == 0 and divide:
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


@njit(nogil=True, error_model="numpy")
def random_row(x, out, encode, scale, width, ahead, g, index, stride, key):
    """The same by chance, with all random bits, in formats with a negative zero and steps."""
    num = max(width, LINE)
    done, start, step = x.size // num * num, u32(index), u32(stride)
    if u64(start) + u64(done) * stride > u64(1 << 32):  # the key's words change in between
        return 0
    first, second = words(key, u64(index >> u64(32)))
    xs, ys = x[:done], out[:done]
    if width == 1:
        chance_1(xs, ys, encode, scale, ahead, g, start, step, first, second)
    elif width == 16:
        chance_16(xs, ys, encode, scale, ahead, g, start, step, first, second)
    elif width == 32:
        chance_32(xs, ys, encode, scale, ahead, g, start, step, first, second)
    else:
        done = 0
    return done
