"""The largest magnitude of a tensor, from its bits.

Each of many lanes keeps its own: a single one would be found anew in each vector. Four parts are
read side by side, because the processor asks for memory ahead in each of them.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numpy as np

from floatscope.compiled import njit

LANES, PARTS = 128, 4

u64 = np.uint64


def _amax(finite: bool) -> Any:
    @njit(nogil=True)
    def amax(x):
        """The largest magnitude of a flat array of bits, of finite ones or of all."""
        T = x.dtype.type
        kept, infinity = (
            (T(0x7FFF), T(0x7F80)) if x.itemsize == 2 else (T(0x7FFF_FFFF), T(0x7F80_0000))
        )
        lanes = np.zeros(LANES, x.dtype)
        part = x.size // (PARTS * LANES) * LANES
        for line in range(0, part, LANES):
            for start in range(line, PARTS * part, part):
                for j in range(LANES):
                    a = T(x[u64(start + j)] & kept)
                    a = T(0) if finite and a >= infinity else a
                    lanes[j] = max(lanes[j], a)
        largest = lanes.max()
        for i in range(PARTS * part, x.size):
            a = T(x[i] & kept)
            largest = max(largest, T(0) if finite and a >= infinity else a)
        return largest

    return amax


amax_of, finite_amax_of = _amax(False), _amax(True)
"""Of all magnitudes of fp32 or bf16, where a NaN is above infinity, and of the finite ones."""
