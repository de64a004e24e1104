"""Matrix products with aligned, truncated sums on the CPU, one tile of the result at a time.

A tile is some rows of the left operand and a panel of columns of the right one, which is packed
panel by panel. Along the contracted dimension, a block of the panel stays near the processor while
all rows of the tile pass by, each with its running sums. Every inner loop runs over the columns of
a panel, with several products a turn, so that it becomes vector instructions without a remainder.
Panels are flat and their places unsigned: loops over rows of their own, or with signed places,
first ask whether rows overlap and lie within bounds, and take twice as long.

Aligned sums (Hopper, Ada) take two passes over a block: one finds the largest exponent of each
column's products, as sums of 8-bit or 16-bit exponents; the other multiplies, scales by a power of
two, and truncates by converting to an integer. A product of short significands is exact in fp32,
the scale is a power of two, and the conversion truncates toward zero, so nothing is rounded on the
way. That holds while no product overflows or underflows in fp32; the wide loop does without that
condition, in fp64, and looks for infinities and NaN. Which one may run is the caller's to decide,
by `facts`. A group of rows takes each pass together, so that no row waits for itself.

The kernels are serial and release the interpreter lock. In Numba, int32 + int32 is int64, so every
operation is wrapped.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

from typing import Any

import numpy as np

from floatscope.compiled import njit
from floatscope.rounding.kernels.numba_bits import as_bits, as_float, widest_vectors

PANEL, COLUMNS = 256, 64
"""Columns of a panel, and what the last panel's are a multiple of."""
ROWS = 64
"""Rows of a tile, at most."""
GROUP = 16
"""Rows that take each pass over a block together, so that one row does not wait for itself."""
FRACTION_BITS = 13
"""Of an aligned product and of a kept sum."""
LOWEST_ALIGNMENT, LOWEST_SUM = -132, -126
"""The smallest exponents that products are aligned to, and that a sum has."""
LOWEST_FAST = -100
"""Below the exponents of all products in the fast loop."""
NOTHING = {np.int8: -64, np.int16: -8192}
"""The exponent of zero, by type: a sum with it is below all others, and two of them fit."""
MAX_SPAN = 62
"""Octaves that the exponents of two operands may span together, for 8-bit sums of them."""

i32, i64, u32, u64, f32, f64 = np.int32, np.int64, np.uint32, np.uint64, np.float32, np.float64
MAGNITUDE, INFINITY, FRACTION = u32(0x7FFF_FFFF), u32(0x7F80_0000), u32(0x007F_FFFF)
NO_BITS = u32(0xFFFF_FFFF)
TWICE_ONE = u32(254 << 23)
"""Twice the bits of 1: less those of a power of two, it is the bits of the reciprocal."""
KEPT32 = u32(0xFFFF_FFFF << (23 - FRACTION_BITS) & 0xFFFF_FFFF)
KEPT64 = u64((1 << 64) - (1 << (52 - FRACTION_BITS)))
SMALLEST_NORMAL, LARGEST = 2.0**LOWEST_SUM, 2.0**128
TINY_UNIT = 2.0 ** (LOWEST_SUM - FRACTION_BITS)


@njit(nogil=True, error_model="numpy")
def facts(x):
    """Bits of the largest magnitude, of the smallest but zero (all ones if none), of all fractions.

    Args:
        x: uint32 bits of fp32 (size,).
    """
    largest, smallest, fractions = u32(0), NO_BITS, u32(0)
    for i in range(x.size):
        a = u32(x[i] & MAGNITUDE)
        largest, smallest = max(largest, a), min(smallest, u32(a - u32(1)))
        fractions = u32(fractions | (a if a < INFINITY else u32(0)))
    return largest, u32(smallest + u32(smallest != NO_BITS)), u32(fractions & FRACTION)


@njit(nogil=True, error_model="numpy")
def exponent_of(a):
    """The exponent of the fp32 number with the bits a, positive and finite, as int32."""
    subnormal = i32(i32(u32(as_bits(f32(i32(a & FRACTION))) >> u32(23))) - i32(276))
    return i32(i32(u32(a >> u32(23))) - i32(127)) if a > FRACTION else subnormal


@njit(nogil=True, error_model="numpy")
def exponents(values, emin, base, nothing, out):
    """How far exponents are above `base`.

    Args:
        values: fp32 (size,).
        emin: the smallest exponent that a number has.
        base: what is subtracted.
        nothing: what zero, infinity and NaN have.
        out: int8 or int16 (size,).
    """
    T = out.dtype.type
    bits = values.view(np.uint32)
    for i in range(bits.size):
        a = u32(bits[u64(i)] & MAGNITUDE)
        e = i32(max(exponent_of(a), i32(emin)) - i32(base))
        out[u64(i)] = T(i32(nothing) if (a == u32(0)) | (a >= INFINITY) else e)


@njit(nogil=True, error_model="numpy")
def higher(one, other):
    """The larger of two numbers."""
    return one if one > other else other


@njit(nogil=True, error_model="numpy")
def align(ea, eb, top):
    """Find the largest exponents of the products of a block.

    Args:
        ea: int8 or int16 (block,), exponents of the left operand.
        eb: (block * width,), of the right one, of the same type.
        top: (width,), filled: the largest sum in each column.
    """
    widest_vectors()
    T, P = top.dtype.type, u64(top.size)
    for n in range(P):
        top[n] = T(ea[0] + eb[n])
    for k in range(u64(0), u64(ea.size), u64(8)):
        a, b, c, d = ea[k], ea[k + u64(1)], ea[k + u64(2)], ea[k + u64(3)]
        e, f, g, h = ea[k + u64(4)], ea[k + u64(5)], ea[k + u64(6)], ea[k + u64(7)]
        for n in range(P):
            i = k * P + n
            ab = higher(T(a + eb[i]), T(b + eb[i + P]))
            cd = higher(T(c + eb[i + u64(2) * P]), T(d + eb[i + u64(3) * P]))
            ef = higher(T(e + eb[i + u64(4) * P]), T(f + eb[i + u64(5) * P]))
            gh = higher(T(g + eb[i + u64(6) * P]), T(h + eb[i + u64(7) * P]))
            top[n] = higher(top[n], higher(higher(ab, cd), higher(ef, gh)))


@njit(nogil=True, error_model="numpy")
def term(a, b, scale):
    """A product in units of the sum, truncated toward zero."""
    return i32(f32(f32(a * b) * scale))


@njit(nogil=True, error_model="numpy")
def add_truncated(a, b, scale, total):
    """Add the products of a block to `total`, each truncated to a multiple of 1 / scale.

    Args:
        a: fp32 (block,).
        b: fp32 (block * width,).
        scale: fp32 (width,), powers of two.
        total: int32 (width,).
    """
    widest_vectors()
    P = u64(total.size)
    for k in range(u64(0), u64(a.size), u64(16)):
        a0, a1, a2, a3 = a[k], a[k + u64(1)], a[k + u64(2)], a[k + u64(3)]
        a4, a5, a6, a7 = a[k + u64(4)], a[k + u64(5)], a[k + u64(6)], a[k + u64(7)]
        a8, a9, aa, ab = a[k + u64(8)], a[k + u64(9)], a[k + u64(10)], a[k + u64(11)]
        ac, ad, ae, af = a[k + u64(12)], a[k + u64(13)], a[k + u64(14)], a[k + u64(15)]
        for n in range(P):
            i = k * P + n
            s = scale[n]
            c0 = i32(term(a0, b[i], s) + term(a1, b[i + P], s))
            c1 = i32(term(a2, b[i + u64(2) * P], s) + term(a3, b[i + u64(3) * P], s))
            c2 = i32(term(a4, b[i + u64(4) * P], s) + term(a5, b[i + u64(5) * P], s))
            c3 = i32(term(a6, b[i + u64(6) * P], s) + term(a7, b[i + u64(7) * P], s))
            c4 = i32(term(a8, b[i + u64(8) * P], s) + term(a9, b[i + u64(9) * P], s))
            c5 = i32(term(aa, b[i + u64(10) * P], s) + term(ab, b[i + u64(11) * P], s))
            c6 = i32(term(ac, b[i + u64(12) * P], s) + term(ad, b[i + u64(13) * P], s))
            c7 = i32(term(ae, b[i + u64(14) * P], s) + term(af, b[i + u64(15) * P], s))
            first, second = i32(i32(c0 + c1) + i32(c2 + c3)), i32(i32(c4 + c5) + i32(c6 + c7))
            total[n] = i32(total[n] + i32(first + second))


@njit(nogil=True, error_model="numpy")
def add_blocks(a, b, ea, eb, base, nothing, acc, top, scale, total):
    """Add a block of products, all normal in fp32 or zero, to the sums of each row.

    Args:
        a: fp32 (rows, block).
        b: fp32 (block * width,).
        ea: exponents of a.
        eb: exponents of b.
        base: what is to be added to a sum of two exponents.
        nothing: the exponent of zero; sums of two up to this belong to products that are zero.
        acc: fp32 (rows * width,), the sums.
        top: (rows * width,), of the type of ea, scratch.
        scale: fp32 (rows * width,), scratch.
        total: int32 (rows * width,), scratch.
    """
    widest_vectors()
    width = acc.size // a.shape[0]
    for m in range(a.shape[0]):
        align(ea[m], eb, top[m * width : (m + 1) * width])
    for n in range(acc.size):
        field = i32(u32(as_bits(acc[n]) & MAGNITUDE) >> u32(23))
        t = i32(top[n])
        e = max(i32(t + base) if t > nothing else i32(LOWEST_FAST), i32(field - i32(127)))
        s = as_float(u32(u32(i32(127 + FRACTION_BITS) - e) << u32(23)))
        scale[n] = s
        total[n] = i32(f32(acc[n] * s))
    for m in range(a.shape[0]):
        row = slice(m * width, (m + 1) * width)
        add_truncated(a[m], b, scale[row], total[row])
    for n in range(acc.size):
        unit = as_float(u32(TWICE_ONE - as_bits(scale[n])))
        acc[n] = as_float(u32(as_bits(f32(f32(total[n]) * unit)) & KEPT32))


@njit(nogil=True, error_model="numpy")
def power(exponent):
    """2 to a whole number, in fp64."""
    return as_float(u64(u64(1023 + exponent) << u64(52)))


@njit(nogil=True, error_model="numpy")
def kept(total):
    """A sum in fp64 as the accumulator keeps it: truncated; infinite beyond fp32's range."""
    size = abs(total)
    if size < SMALLEST_NORMAL:
        return f32(np.trunc(total / TINY_UNIT) * TINY_UNIT + 0.0)  # zero is positive
    if size >= LARGEST:
        return f32(total * np.inf)
    return f32(as_float(u64(as_bits(total) & KEPT64)))


@njit(nogil=True, error_model="numpy")
def add_blocks_wide(a, b, ea, eb, base, nothing, acc, top, scale, total):
    """`add_blocks` for all values; scale and total are fp64."""
    width = acc.size // a.shape[0]
    for m in range(a.shape[0]):
        row = slice(m * width, (m + 1) * width)
        align(ea[m], eb, top[row])
        add_row_wide(a[m], b, base, nothing, acc[row], top[row], scale[row], total[row])


@njit(nogil=True, error_model="numpy")
def add_row_wide(a, b, base, nothing, acc, top, scale, total):
    """One row of `add_blocks_wide`, after the largest exponents."""
    for n in range(acc.size):
        t = i32(top[n])
        e = max(i32(t + base) if t > nothing else i32(LOWEST_ALIGNMENT), i32(LOWEST_ALIGNMENT))
        size = u32(as_bits(acc[n]) & MAGNITUDE)
        is_finite = size < INFINITY
        e = max(e, exponent_of(size)) if is_finite & (size != u32(0)) else e
        scale[n] = power(FRACTION_BITS - e)
        total[n] = np.trunc(f64(acc[n]) * scale[n]) if is_finite else 0.0
        acc[n] = f32(0) if is_finite else acc[n]  # from here on the sum of what is not finite
    for k in range(a.size):
        x, start = f64(a[k]), u64(k) * u64(acc.size)
        for n in range(acc.size):
            product = x * f64(b[start + u64(n)])
            is_finite = abs(product) < np.inf
            total[n] += np.trunc(product * scale[n]) if is_finite else 0.0
            acc[n] += f32(0) if is_finite else f32(product)
    for n in range(acc.size):
        if acc[n] == f32(0):
            acc[n] = kept(total[n] / scale[n])


def _aligned_tile(is_wide: bool) -> Any:
    step, real = (add_blocks_wide, f64) if is_wide else (add_blocks, f32)
    whole = f64 if is_wide else i32

    @njit(nogil=True, error_model="numpy")
    def aligned_tile(a, panel, ea, eb, base, nothing, block, promote, out):
        """A tile of aligned, truncated sums.

        Args:
            a: fp32 (rows, K), K a multiple of block.
            panel: fp32 (K * width,).
            ea: (rows, K), exponents of a, of the same type as eb.
            eb: (K * width,), exponents of the panel.
            base: what is to be added to a sum of two exponents.
            nothing: the exponent of zero.
            block: products that are added at a time, a multiple of 16.
            promote: products after which a sum is added to one in fp32 and starts anew, a multiple
                of block; 0 for never.
            out: fp32 (rows, width), zeros.
        """
        widest_vectors()
        width = out.shape[1]
        size = min(GROUP, a.shape[0]) * width
        top, scale, total = np.empty(size, eb.dtype), np.empty(size, real), np.empty(size, whole)
        sums = out.reshape(-1)
        acc = np.zeros(sums.size, np.float32) if promote else sums
        for k in range(0, a.shape[1], block):
            stop = k + block
            b, e = panel[k * width : stop * width], eb[k * width : stop * width]
            for m in range(0, a.shape[0], GROUP):
                last = min(m + GROUP, a.shape[0])
                x, f, y = a[m:last, k:stop], ea[m:last, k:stop], acc[m * width : last * width]
                step(x, b, f, e, i32(base), i32(nothing), y, top, scale, total)
            if promote and (stop % promote == 0 or stop == a.shape[1]):
                sums += acc
                acc[:] = f32(0)

    return aligned_tile


aligned_tile, aligned_tile_wide = _aligned_tile(False), _aligned_tile(True)
