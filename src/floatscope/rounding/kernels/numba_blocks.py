"""Block formats on the CPU: amax, scale and elements of a strip of blocks, while it is in cache.

A strip is one row of blocks: as many rows of the matrix as a block has. Rows of a strip are cut
into segments that stay in the first- or second-level cache between the two looks at them. The
element loop is that of `numba_elements.py` between two multiplications: what an element format
makes of x * encode comes back times the scale. Both factors are fp32; where they are powers of two
the multiplications are exact, or underflow so far below the element format that only the sign is
left.

The scales are those of `numba_scales.py`, whose checksum is a part of the kernel: Numba's cache of
compiled code looks for changes in this file alone.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from floatscope.rounding.grid import INDEX
from floatscope.rounding.kernels import checksum, numba_scales
from floatscope.rounding.kernels.numba_bits import (
    as_bits,
    as_float,
    as_real,
    is_below,
    prefetch,
    random_word,
    shift_left,
    shift_right,
    store_past_caches,
    words,
)
from floatscope.rounding.kernels.numba_scales import AMAX_DIVIDE, NVFP4, scale_blocks
from floatscope.rounding.receipt import NUM_COUNTS

SEGMENT, LONG_SEGMENT = 2048, 4096
"""Columns of a segment, and of one that is a single row, or one block if that is wider."""
LINES = 64
"""Elements between two requests for memory."""

DROP, NORMAL, STEP, ONE_BY_STEP, ANCHOR = (
    INDEX[n] for n in ("drop", "normal", "step", "one_by_step", "anchor")
)
LARGEST, LOWEST, NEGATIVE_ZERO = INDEX["largest"], INDEX["lowest"], INDEX["negative_zero"]
OVERFLOWED, INFINITE, NANS, SATURATED, BECAME_NAN, RAISED, FLUSHED, LOST_SIGN = range(NUM_COUNTS)

u32, u64, f32 = np.uint32, np.uint64, np.float32
SIGN, MAGNITUDE, INFINITY = u32(0x8000_0000), u32(0x7FFF_FFFF), u32(0x7F80_0000)
HALF, NONE, ONE = u32(0x0040_0000), u32(0), u32(1)
FP32_MAX = f32(3.4028234663852886e38)


@njit(nogil=True, cache=True, error_model="numpy")
def halve(x, out):
    """The larger of each pair."""
    for i in range(out.size):
        out[i] = max(x[2 * i], x[2 * i + 1])


@njit(nogil=True, cache=True, error_model="numpy")
def amax_by_halves(x, amax, width, room):
    """Blocks of a power of two: halving whole rows is vector work, a loop over 32 is not."""
    count, width, here = x.size // 2, width // 2, 0
    pairs = room[0, :count]
    for i in range(count):
        pairs[i] = max(u32(x[2 * i] & MAGNITUDE), u32(x[2 * i + 1] & MAGNITUDE))
    while width > 1:
        count, width = count // 2, width // 2
        halve(room[here, : 2 * count], room[1 - here, :count])
        here = 1 - here
    for b in range(count):
        amax[b] = max(amax[b], room[here, b])


@njit(nogil=True, cache=True, error_model="numpy")
def amax_row(x, amax, width, room):
    """amax[b] = the largest magnitude of block b of a row, or of what it held before."""
    whole = x.size // width
    if width == 1:
        for i in range(x.size):
            amax[i] = max(amax[i], u32(x[i] & MAGNITUDE))
    elif width < 128 and width & (width - 1) == 0:
        amax_by_halves(x[: whole * width], amax, width, room)
    else:
        for b in range(whole):
            largest = amax[b]
            for j in range(width):
                largest = max(largest, u32(x[b * width + j] & MAGNITUDE))
            amax[b] = largest
    for i in range(whole * width, x.size):
        amax[whole] = max(amax[whole], u32(x[i] & MAGNITUDE))


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


plain_1, plain_16, plain_32 = _apart(False), _plain(16, False), _plain(32, False)
plain_128, divided_1, divided_128 = _plain(128, False), _apart(True), _plain(128, True)
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
    elif width == 128 and divide:
        divided_128(x, out, encode, scale, ahead, g)
    elif divide:
        done = 0
    elif width == 1:
        plain_1(x, out, encode, scale, ahead, g)
    elif width == 16:
        plain_16(x, out, encode, scale, ahead, g)
    elif width == 32:
        plain_32(x, out, encode, scale, ahead, g)
    elif width == 128:
        plain_128(x, out, encode, scale, ahead, g)
    else:
        done = 0
    return done


@njit(nogil=True, cache=True, error_model="numpy")
def finish(r, t, u, scale, largest, lowest, zero_sign):
    """The bits of a value from its element's magnitude r; t are the scaled bits, u those given.

    Also whether it saturated or is NaN, was NaN before, and became zero.
    """
    a, before = u32(t & MAGNITUDE), u32(u & MAGNITUDE)
    limit = lowest if t >= SIGN else largest
    is_beyond, is_nan = r > limit, a > INFINITY
    r = a if is_nan else limit if is_beyond else r
    signed = u32(r | u32(t & (zero_sign if r == NONE else SIGN)))
    y = as_bits(f32(as_float(signed) * scale))
    is_flushed = (u32(y & MAGNITUDE) == NONE) & (before != NONE)
    return y, u32(is_beyond), u32(is_nan), u32(before > INFINITY), u32(is_flushed)


@njit(nogil=True, cache=True, error_model="numpy")
def nearest(x, out, encode, scale, divide, g, counts):
    """Elements of a segment, to nearest even and counted; encode and scale are given for each."""
    drop, normal, largest, lowest = u32(g[DROP]), u32(g[NORMAL]), u32(g[LARGEST]), u32(g[LOWEST])
    half_less = u32(u32(ONE << u32(drop - ONE)) - ONE)
    kept = u32(~u32(u32(ONE << drop) - ONE))
    zero_sign = SIGN if g[NEGATIVE_ZERO] else NONE
    anchor = as_float(u32(g[ANCHOR]))
    beyond, nan, nan_before, flushed = NONE, NONE, NONE, NONE
    for i in range(x.size):
        value = as_float(x[i])
        t = as_bits(f32(value / encode[i]) if divide else f32(value * encode[i]))
        a = u32(t & MAGNITUDE)
        odd = u32(shift_right(a, drop) & ONE)
        r = u32(u32(u32(a + half_less) + odd) & kept)
        on_grid = as_bits(f32(f32(as_float(a) + anchor) - anchor))
        r = on_grid if a < normal else r
        y, is_beyond, is_nan, was_nan, is_flushed = finish(
            r, t, x[i], scale[i], largest, lowest, zero_sign
        )
        beyond, nan = u32(beyond + is_beyond), u32(nan + is_nan)
        nan_before, flushed = u32(nan_before + was_nan), u32(flushed + is_flushed)
        out[i] = y
    count(counts, beyond, nan, nan_before, flushed)


@njit(nogil=True, cache=True, error_model="numpy")
def stochastic(x, out, encode, scale, divide, g, index, key, spare, counts):
    """Elements of a segment, by chance: `stochastic` of `numba_elements.py` says why."""
    drop, normal, largest, lowest = u32(g[DROP]), u32(g[NORMAL]), u32(g[LARGEST]), u32(g[LOWEST])
    unit = u32(ONE << drop)
    to_left = u32(u32(32) - drop)
    zero_sign = SIGN if g[NEGATIVE_ZERO] else NONE
    step, steps_in_one = as_float(u32(g[STEP])), as_float(u32(g[ONE_BY_STEP]))
    most, parts = f32(2.0**31), f32(2.0**32)
    first, second = words(key, u64(index >> u64(32)))
    start = u32(index)
    beyond, nan, nan_before, flushed = NONE, NONE, NONE, NONE
    for i in range(x.size):
        value = as_float(x[i])
        t = as_bits(f32(value / encode[i]) if divide else f32(value * encode[i]))
        a = u32(t & MAGNITUDE)
        random = random_word(u32(start + u32(i)), first, second)
        rest = u32(a & u32(unit - ONE))
        steps = f32(as_float(a) * steps_in_one)
        steps = steps if steps < most else most
        whole = u32(steps)
        on_grid = a < normal
        cut = u32(f32(steps - as_real(whole)) * parts) if on_grid else shift_left(rest, to_left)
        up = is_below(random, cut, spare)
        r = u32(u32(a - rest) + (unit if up else NONE))
        r = as_bits(f32(as_real(u32(whole + u32(up))) * step)) if on_grid else r
        y, is_beyond, is_nan, was_nan, is_flushed = finish(
            r, t, x[i], scale[i], largest, lowest, zero_sign
        )
        beyond, nan = u32(beyond + is_beyond), u32(nan + is_nan)
        nan_before, flushed = u32(nan_before + was_nan), u32(flushed + is_flushed)
        out[i] = y
    count(counts, beyond, nan, nan_before, flushed)


@njit(nogil=True, cache=True, error_model="numpy")
def count(counts, beyond, nan, nan_before, flushed):
    """Add the counts of a segment."""
    counts[SATURATED] += beyond - nan
    counts[NANS] += nan_before
    counts[BECAME_NAN] += nan - nan_before
    counts[FLUSHED] += flushed


@njit(nogil=True, cache=True, error_model="numpy")
def repeat(factors, width, out):
    """Each factor for all the elements of its block."""
    if width == 32:
        for b in range(out.size // 32):
            for j in range(32):
                out[b * 32 + j] = factors[b]
    else:
        for b in range(out.size // width):
            for j in range(width):
                out[b * width + j] = factors[b]
    whole = out.size // width
    for i in range(whole * width, out.size):
        out[i] = factors[whole]


@njit(nogil=True, cache=True, error_model="numpy")
def round_row(
    x, out, encode, scale, width, divide, plain, stream, chance, ahead, g, index, key, spare, room,
    counts,
):  # fmt: skip
    """Round the part of a row that a segment has; `room` is space for the factors of elements."""
    done = 0
    if plain and stream:
        done = past_row(x, out, encode, scale, width, ahead, g)
    elif plain:
        done = plain_row(x, out, encode, scale, width, divide, ahead, g)
    if done == x.size:
        return
    encodes, scales = room[0, : x.size - done], room[1, : x.size - done]
    repeat(encode[done // width :], width, encodes)
    repeat(scale[done // width :], width, scales)
    if chance:
        at = u64(index + u64(done))
        head = done + min(
            x.size - done, np.int64(1 << 32) - np.int64(u32(at))
        )  # the key's words change there
        stochastic(x[done:head], out[done:head], encodes, scales, divide, g, at, key, spare, counts)
        if head < x.size:
            at = u64(at + u64(head - done))
            encodes, scales = encodes[head - done :], scales[head - done :]
            stochastic(x[head:], out[head:], encodes, scales, divide, g, at, key, spare, counts)
    else:
        nearest(x[done:], out[done:], encodes, scales, divide, g, counts)


def _round_strips(revision: int) -> Any:
    """The kernel for one state of the scales' source."""

    @njit(nogil=True, cache=True, error_model="numpy")
    def round_strips(
        x, out, columns, stored, height, width, rule, element, amax_before, tensor_encode, apart,
        plain, stream, chance, g, offset, key, spare, counts,
    ):  # fmt: skip
        """Round whole strips of blocks of height x width elements.

        x and out are matrices of bits, flat, and may be the same; `stored`, flat too, receives the
        stored scales. `element` is (top octave, fraction bits, largest value). `amax_before` is
        what a block's amax is at least. `apart`: leave fp32 scales out of the values. `offset` is
        the logical index of x[0]. `plain`: to nearest, uncounted; `stream`: that past the caches,
        for rows of aligned lines and a width that `past_row` has.
        """
        rows = x.size // columns
        divide = rule == AMAX_DIVIDE and revision > 0
        segment = LONG_SEGMENT if height == 1 else SEGMENT
        segment = min(max(width, segment // width * width), columns)
        num_blocks = (segment + width - 1) // width
        amax = np.empty(num_blocks, np.uint32)
        encode, scale = np.empty(num_blocks, np.float32), np.empty(num_blocks, np.float32)
        room, halves = np.empty((2, segment), np.float32), np.empty((2, segment), np.uint32)
        per_strip = (columns + width - 1) // width
        for top in range(0, rows, height):
            bottom = min(top + height, rows)
            for left in range(0, columns, segment):
                right = min(left + segment, columns)
                first, blocks = left // width, (right - left + width - 1) // width
                amax[:] = amax_before
                for row in range(top, bottom):
                    start = row * columns
                    amax_row(x[start + left : start + right], amax, width, halves)
                kept = stored[top // height * per_strip + first :][:blocks]
                scale_blocks(amax[:blocks], rule, encode, scale, kept, element, tensor_encode)
                if apart:
                    scale[:blocks] = kept if rule == NVFP4 else np.ones(blocks, np.float32)
                ahead = segment if right < columns else height * columns - left
                for row in range(top, bottom):
                    start, stop = row * columns + left, row * columns + right
                    round_row(
                        x[start:stop], out[start:stop], encode, scale, width, divide, plain, stream,
                        chance, ahead, g,
                        u64(offset + u64(start)), key, spare, room, counts,
                    )  # fmt: skip

    return round_strips


round_strips = _round_strips(checksum(numba_scales))
