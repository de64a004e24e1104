"""Matrix products with sums that take one product at a time on the CPU: in fp16, and Kahan's.

Tiles and panels are those of `numba_accumulate.py`. A piece of a panel stays near the processor
while all rows of a tile pass by. A sum in fp16 is rounded by the processor's conversion to fp16 and
back; in fp64, to a multiple of fp16's unit, by adding and subtracting a power of two.

The kernels are serial and release the interpreter lock.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

import platform
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from floatscope.compiled import njit
from floatscope.rounding.kernels.numba_bits import as_bits, as_float, widest_vectors

DEPTH = 64
"""Products between two visits to a row."""
CONVERTS_HALF = platform.machine() in ("arm64", "aarch64") or "+f16c" in get_host_cpu_features()
"""Whether the processor converts between fp32 and fp16; where not, the wide loop does without."""

u64, f32 = np.uint64, np.float32
INF = f32(np.inf)
MAGNITUDE64, INFINITY64 = u64(0x7FFF_FFFF_FFFF_FFFF), u64(0x7FF0_0000_0000_0000)
SMALLEST_NORMAL_HALF, HALF_LIMIT = 2.0**-14, 65520.0


@intrinsic
def through_half(typing_context: Any, value: Any) -> Any:
    """A number of fp32 as fp16 holds it, to nearest even; only where `CONVERTS_HALF`."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fpext(builder.fptrunc(args[0], ir.HalfType()), ir.FloatType())

    return numba.float32(numba.float32), generate


@njit(nogil=True, error_model="numpy")
def plus_in_half(acc, a, b):
    """The sum acc + a * b as fp16 holds it, where fp32 holds the product."""
    return through_half(f32(acc + f32(a * b)))


@njit(nogil=True, error_model="numpy")
def plus_in_half_wide(acc, a, b):
    """The sum acc + a * b in fp64 as fp16 holds it, to nearest even.

    With u the unit of fp16 at a number, adding u * 2^52 leaves multiples of u.
    """
    s = as_bits(acc + a * b)
    size, octave = as_float(u64(s & MAGNITUDE64)), as_float(u64(s & INFINITY64))
    anchor = max(octave, SMALLEST_NORMAL_HALF) * 2.0 ** (52 - 10)
    r = (size + anchor) - anchor
    return as_float(u64(as_bits(np.inf if size >= HALF_LIMIT else r) | u64(s & ~MAGNITUDE64)))


def _half_tile(is_wide: bool) -> Any:
    plus = plus_in_half_wide if is_wide else plus_in_half

    @njit(nogil=True, error_model="numpy")
    def half_tile(a, panel, out):
        """A tile of sums that are rounded to fp16 after each product.

        Args:
            a: (rows, K), fp64 for the wide loop, else fp32.
            panel: (K * width,), of the same type.
            out: (rows, width), of the same type, zeros.
        """
        widest_vectors()
        K, P = u64(a.shape[1]), u64(out.shape[1])
        for start in range(u64(0), K, u64(DEPTH)):
            stop = min(K, start + u64(DEPTH))
            unrolled = stop - stop % u64(4)
            for m in range(a.shape[0]):
                acc = out[m]
                for k in range(start, unrolled, u64(4)):
                    a0, a1, a2, a3 = a[m, k], a[m, k + u64(1)], a[m, k + u64(2)], a[m, k + u64(3)]
                    for n in range(P):
                        i = k * P + n
                        s = plus(plus(acc[n], a0, panel[i]), a1, panel[i + P])
                        s = plus(s, a2, panel[i + u64(2) * P])
                        acc[n] = plus(s, a3, panel[i + u64(3) * P])
                for k in range(unrolled, stop):
                    for n in range(P):
                        acc[n] = plus(acc[n], a[m, k], panel[k * P + n])

    return half_tile


half_tile, half_tile_wide = _half_tile(False), _half_tile(True)


def _kahan_tile(is_wide: bool) -> Any:
    @njit(nogil=True, error_model="numpy")
    def plus(s, c, product):
        """One step of Kahan's sum: the sum and what it has too much."""
        y = f32(product - c)
        t = f32(s + y)
        c = f32(f32(t - s) - y)
        return t, c if not is_wide or abs(t) < INF else f32(0)

    @njit(nogil=True, error_model="numpy")
    def kahan_tile(a, panel, out):
        """A tile of sums in fp32 with Kahan's compensation; only the wide loop may overflow.

        Args:
            a: fp32 (rows, K).
            panel: fp32 (K * width,).
            out: fp32 (rows, width), zeros.
        """
        widest_vectors()
        K, P = u64(a.shape[1]), u64(out.shape[1])
        rest = np.zeros(out.shape, np.float32)
        for start in range(u64(0), K, u64(DEPTH)):
            stop = min(K, start + u64(DEPTH))
            unrolled = stop - stop % u64(4)
            for m in range(a.shape[0]):
                acc, c = out[m], rest[m]
                for k in range(start, unrolled, u64(4)):
                    a0, a1, a2, a3 = a[m, k], a[m, k + u64(1)], a[m, k + u64(2)], a[m, k + u64(3)]
                    for n in range(P):
                        i = k * P + n
                        s, d = plus(acc[n], c[n], f32(a0 * panel[i]))
                        s, d = plus(s, d, f32(a1 * panel[i + P]))
                        s, d = plus(s, d, f32(a2 * panel[i + u64(2) * P]))
                        acc[n], c[n] = plus(s, d, f32(a3 * panel[i + u64(3) * P]))
                for k in range(unrolled, stop):
                    for n in range(P):
                        product = f32(a[m, k] * panel[k * P + n])
                        acc[n], c[n] = plus(acc[n], c[n], product)

    return kahan_tile


kahan_tile, kahan_tile_wide = _kahan_tile(False), _kahan_tile(True)
