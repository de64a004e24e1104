"""The largest magnitude of a tensor, from its bits."""

# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from floatscope.rounding.kernels.numba_bits import prefetch

LINES, AHEAD = 64, 1024
"""Elements between two requests for memory, and how far ahead these look."""

u32, u64 = np.uint32, np.uint64


def _amax(finite: bool) -> Any:
    @njit(nogil=True, cache=True)
    def amax(x):
        """The largest magnitude of a flat array of bits, of finite ones or of all."""
        largest = u32(0)
        whole = x.size // LINES * LINES
        for line in range(0, whole, LINES):
            for j in range(0, LINES, 16):
                prefetch(x, line + j + AHEAD)
            for j in range(LINES):
                a = u32(x[u64(line + j)] & u32(0x7FFF_FFFF))
                largest = max(largest, u32(0) if finite and a >= u32(0x7F80_0000) else a)
        for i in range(whole, x.size):
            a = u32(x[i] & u32(0x7FFF_FFFF))
            largest = max(largest, u32(0) if finite and a >= u32(0x7F80_0000) else a)
        return largest

    return amax


amax_of, finite_amax_of = _amax(False), _amax(True)
"""Of all magnitudes, where a NaN is above infinity, and of the finite ones."""
