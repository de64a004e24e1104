"""Block formats on the CPU: amax, scale and elements of a strip of blocks, while it is in cache.

A strip is one row of blocks: as many rows of the matrix as a block has. Rows of a strip are cut
into segments that stay in the first- or second-level cache between the two looks at them. The
element loop is that of `numba_elements.py` between two multiplications: what an element format
makes of x * encode comes back times the scale. Both factors are fp32; where they are powers of two
the multiplications are exact, or underflow so far below the element format that only the sign is
left.

The scales are those of `numba_scales.py` and the uncounted loops those of `numba_plain.py`.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.grid import INDEX
from floatscope.rounding.kernels.numba_bits import (
    as_bits,
    as_float,
    as_real,
    is_below,
    random_word,
    shift_left,
    shift_right,
    words,
)
from floatscope.rounding.kernels.numba_plain import (
    LINES,
    past_row,
    plain_columns,
    plain_row,
    random_row,
)
from floatscope.rounding.kernels.numba_scales import AMAX_DIVIDE, scale_blocks
from floatscope.rounding.receipt import NUM_COUNTS

SEGMENT, LONG_SEGMENT = 2048, 8192
"""Columns of a segment, and of one that is a single row, or one block if that is wider."""

DROP, NORMAL, STEP, ONE_BY_STEP, ANCHOR = (
    INDEX[n] for n in ("drop", "normal", "step", "one_by_step", "anchor")
)
LARGEST, LOWEST, NEGATIVE_ZERO = INDEX["largest"], INDEX["lowest"], INDEX["negative_zero"]
OVERFLOWED, INFINITE, NANS, SATURATED, BECAME_NAN, RAISED, FLUSHED, LOST_SIGN = range(NUM_COUNTS)

u32, u64, f32 = np.uint32, np.uint64, np.float32
SIGN, MAGNITUDE, INFINITY = u32(0x8000_0000), u32(0x7FFF_FFFF), u32(0x7F80_0000)
HALF, NONE, ONE, ONE64 = u32(0x0040_0000), u32(0), u32(1), u64(1)
FP32_MAX = f32(3.4028234663852886e38)


@njit(nogil=True, error_model="numpy")
def halve(x, out, count):
    """The larger of each of so many pairs."""
    for i in range(count):
        out[u64(i)] = max(x[u64(2 * i)], x[u64(2 * i + 1)])


@njit(nogil=True, error_model="numpy")
def amax_by_halves(x, amax, width, room, other):
    """Blocks of a power of two: halving whole rows is vector work, a loop over 32 is not."""
    count, width, here = x.size // 2, width // 2, True
    for i in range(count):
        a, b = u32(x[u64(2 * i)] & MAGNITUDE), u32(x[u64(2 * i + 1)] & MAGNITUDE)
        room[u64(i)] = max(a, b)
    while width > 1:
        count, width = count // 2, width // 2
        if here:
            halve(room, other, count)
        else:
            halve(other, room, count)
        here = not here
    for b in range(count):
        amax[b] = max(amax[b], room[b] if here else other[b])


@njit(nogil=True, error_model="numpy")
def amax_columns(x, first, rows, columns, stride, amax):
    """amax[c] = the largest magnitude of column c of so many rows, or of what it held before."""
    whole = columns // LINES * LINES
    for start in range(first, first + rows * stride, stride):
        for line in range(0, whole, LINES):
            for j in range(LINES):
                c = u64(line + j)
                amax[c] = max(amax[c], u32(x[u64(start + line + j)] & MAGNITUDE))
        for c in range(whole, columns):
            amax[c] = max(amax[c], u32(x[u64(start + c)] & MAGNITUDE))


@njit(nogil=True, error_model="numpy")
def amax_row(x, amax, width, room, other):
    """amax[b] = the largest magnitude of block b of a row, or of what it held before."""
    whole = x.size // width
    if width < 128 and width & (width - 1) == 0:
        amax_by_halves(x[: whole * width], amax, width, room, other)
    else:
        for b in range(whole):
            largest = amax[b]
            for j in range(width):
                largest = max(largest, u32(x[b * width + j] & MAGNITUDE))
            amax[b] = largest
    for i in range(whole * width, x.size):
        amax[whole] = max(amax[whole], u32(x[i] & MAGNITUDE))


@njit(nogil=True, error_model="numpy")
def amax_strip(x, first, rows, columns, stride, width, amax, room, other, largest):
    """The same for a segment of a strip: so many rows, `stride` apart, and columns of them.

    Several rows become one first, the largest of each column: that is vector work.
    """
    if width == 1:
        amax_columns(x, first, rows, columns, stride, amax)
    elif rows == 1:
        amax_row(x[first : first + columns], amax, width, room, other)
    else:
        largest[:columns] = NONE
        amax_columns(x, first, rows, columns, stride, largest)
        amax_row(largest[:columns], amax, width, room, other)


@njit(nogil=True, error_model="numpy")
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


@njit(nogil=True, error_model="numpy")
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


@njit(nogil=True, error_model="numpy")
def stochastic(x, out, encode, scale, divide, g, index, stride, key, spare, counts):
    """Elements of a segment, by chance: `stochastic` of `numba_elements.py` says why."""
    drop, normal, largest, lowest = u32(g[DROP]), u32(g[NORMAL]), u32(g[LARGEST]), u32(g[LOWEST])
    unit = u32(ONE << drop)
    to_left = u32(u32(32) - drop)
    zero_sign = SIGN if g[NEGATIVE_ZERO] else NONE
    step, steps_in_one = as_float(u32(g[STEP])), as_float(u32(g[ONE_BY_STEP]))
    most, parts = f32(2.0**31), f32(2.0**32)
    first, second = words(key, u64(index >> u64(32)))
    start, apart = u32(index), u32(stride)
    beyond, nan, nan_before, flushed = NONE, NONE, NONE, NONE
    for i in range(x.size):
        value = as_float(x[i])
        t = as_bits(f32(value / encode[i]) if divide else f32(value * encode[i]))
        a = u32(t & MAGNITUDE)
        random = random_word(u32(start + u32(u32(i) * apart)), first, second)
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


@njit(nogil=True, error_model="numpy")
def count(counts, beyond, nan, nan_before, flushed):
    """Add the counts of a segment."""
    counts[SATURATED] += beyond - nan
    counts[NANS] += nan_before
    counts[BECAME_NAN] += nan - nan_before
    counts[FLUSHED] += flushed


@njit(nogil=True, error_model="numpy")
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


@njit(nogil=True, error_model="numpy")
def round_columns(
    x, out, first, rows, columns, stride, encode, scale, width, divide, stream, ahead, g, room,
):  # fmt: skip
    """Round a segment of a strip to nearest and uncounted, column by column."""
    if width > 1:
        encodes, scales = room[0, :columns], room[1, :columns]
        repeat(encode, width, encodes)
        repeat(scale, width, scales)
        encode, scale = encodes, scales
    plain_columns(x, out, first, rows, columns, stride, encode, scale, divide, stream, ahead, g)


@njit(nogil=True, error_model="numpy")
def chance_row(x, out, encodes, scales, divide, g, at, stride, key, spare, counts):
    """`stochastic`, also for indices that pass a multiple of 2^32, where the key's words change.

    Those whose stride is not 1 pass none.
    """
    head = min(x.size, np.int64(1 << 32) - np.int64(u32(at))) if stride == ONE64 else x.size
    xs, ys = x[:head], out[:head]
    stochastic(xs, ys, encodes, scales, divide, g, at, stride, key, spare, counts)
    if head < x.size:
        at = u64(at + u64(head))
        xs, ys, encodes, scales = x[head:], out[head:], encodes[head:], scales[head:]
        stochastic(xs, ys, encodes, scales, divide, g, at, stride, key, spare, counts)


@njit(nogil=True)
def index_of(offset, at, columns, stride):
    """The logical index of an element in rows of so many columns."""
    if stride == ONE64:
        return u64(offset + u64(at))
    return u64(offset + u64(u64(at // columns) + u64(u64(at % columns) * stride)))


@njit(nogil=True, error_model="numpy")
def round_row(
    x, out, encode, scale, width, divide, plain, stream, chance, ahead, g, index, stride, key,
    spare, room, counts,
):  # fmt: skip
    """Round a segment's part of a row; `room` is space for the factors of elements."""
    done = 0
    if plain and chance:
        done = random_row(x, out, encode, scale, width, ahead, g, index, stride, key)
    elif plain and stream:
        done = past_row(x, out, encode, scale, width, ahead, g)
    elif plain:
        done = plain_row(x, out, encode, scale, width, divide, ahead, g)
    if done == x.size:
        return
    encodes, scales = room[0, : x.size - done], room[1, : x.size - done]
    repeat(encode[done // width :], width, encodes)
    repeat(scale[done // width :], width, scales)
    xs, ys = x[done:], out[done:]
    if chance:
        at = u64(index + u64(u64(done) * stride))
        chance_row(xs, ys, encodes, scales, divide, g, at, stride, key, spare, counts)
    else:
        nearest(xs, ys, encodes, scales, divide, g, counts)


@njit(nogil=True, error_model="numpy")
def round_strips(
    x, out, columns, stored, height, width, rule, element, amax_before, tensor_encode, apart,
    plain, stream, chance, g, offset, stride, key, spare, counts,
):  # fmt: skip
    """Round whole strips of blocks of height x width elements.

    x and out are matrices of bits, flat, and may be the same; `stored`, flat too, receives the
    stored scales. `element` is (top octave, fraction bits, largest value). `amax_before` is
    every block's amax, if it is known and not zero. `apart`: leave fp32 scales out of the
    values. `offset` is the logical index of x[0], and neighbors of a row are counted `stride`
    apart: other than 1 only for blocks of one column. `plain`: uncounted; `stream`: that, to
    nearest, past the caches, for rows of aligned lines and a width that `past_row` has.
    """
    rows, divide = x.size // columns, rule == AMAX_DIVIDE
    longest = LONG_SEGMENT if height == 1 else SEGMENT
    segment = min(max(width, longest // width * width), columns)
    num_blocks = (segment + width - 1) // width
    amax = np.empty(num_blocks, np.uint32)
    encode, scale = np.empty(num_blocks, np.float32), np.empty(num_blocks, np.float32)
    room, largest = np.empty((2, segment), np.float32), np.empty(segment, np.uint32)
    halves, others = np.empty(segment, np.uint32), np.empty(segment, np.uint32)
    per_strip = (columns + width - 1) // width
    for top in range(0, rows, height):
        down = min(height, rows - top)
        for left in range(0, columns, segment):
            at, across = top * columns + left, min(segment, columns - left)
            first, blocks = left // width, (across + width - 1) // width
            amax[:] = amax_before
            if amax_before == NONE:
                amax_strip(x, at, down, across, columns, width, amax, halves, others, largest)
            kept, found = stored[top // height * per_strip + first :][:blocks], amax[:blocks]
            scale_blocks(found, rule, encode, scale, kept, element, tensor_encode, apart)
            ahead = segment if left + across < columns else height * columns - left
            if plain and not chance and (width == 1 or down > 1):
                round_columns(
                    x, out, at, down, across, columns, encode, scale, width, divide, stream,
                    ahead, g, room,
                )  # fmt: skip
                continue
            for start in range(at, at + down * columns, columns):
                round_row(
                    x[start : start + across], out[start : start + across], encode, scale,
                    width, divide, plain, stream, chance, ahead, g,
                    index_of(offset, start, columns, stride), stride, key, spare, room, counts,
                )  # fmt: skip
