"""The largest magnitude of a tensor, from its bits."""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np
from numba import njit

u32 = np.uint32


@njit(nogil=True, cache=True)
def amax_of(x):
    """The largest magnitude of a flat array of bits; a NaN is larger than infinity."""
    largest = u32(0)
    for i in range(x.size):
        largest = max(largest, u32(x[i] & u32(0x7FFF_FFFF)))
    return largest


@njit(nogil=True, cache=True)
def finite_amax_of(x):
    """The largest finite magnitude of a flat array of bits."""
    largest = u32(0)
    for i in range(x.size):
        a = u32(x[i] & u32(0x7FFF_FFFF))
        largest = max(largest, a if a < u32(0x7F80_0000) else u32(0))
    return largest
