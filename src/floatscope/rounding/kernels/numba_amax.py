"""The largest magnitude of a tensor, from its bits.

Each of many lanes keeps its own: a single one would be found anew in each vector.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from floatscope.rounding.kernels.numba_bits import prefetch

LINES, AHEAD = 128, 1024
"""Elements between two requests for memory, and how far ahead these look."""

u64 = np.uint64


def _amax(finite: bool) -> Any:
    @njit(nogil=True, cache=True)
    def amax(x):
        """The largest magnitude of a flat array of bits, of finite ones or of all."""
        T = x.dtype.type
        kept, infinity = (
            (T(0x7FFF), T(0x7F80)) if x.itemsize == 2 else (T(0x7FFF_FFFF), T(0x7F80_0000))
        )
        lanes = np.zeros(LINES, x.dtype)
        whole = x.size // LINES * LINES
        for line in range(0, whole, LINES):
            for j in range(0, LINES, 64 // x.itemsize):
                prefetch(x, line + j + AHEAD)
            for j in range(LINES):
                a = T(x[u64(line + j)] & kept)
                a = T(0) if finite and a >= infinity else a
                lanes[j] = max(lanes[j], a)
        largest = lanes.max()
        for i in range(whole, x.size):
            a = T(x[i] & kept)
            largest = max(largest, T(0) if finite and a >= infinity else a)
        return largest

    return amax


amax_of, finite_amax_of = _amax(False), _amax(True)
"""Of all magnitudes of fp32 or bf16, where a NaN is above infinity, and of the finite ones."""
