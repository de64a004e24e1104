"""Tallies on the CPU: the Numba kernel over pieces of a tensor and several threads."""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.rounding.threads import Counts, spread
from floatscope.spectrum.tally import FP32

_KINDS = {torch.float32: (0, torch.int32, np.uint32), torch.bfloat16: (1, torch.int16, np.uint16),
          torch.float16: (2, torch.int16, np.uint16)}  # fmt: skip
_FP8 = (0, torch.uint8, np.uint8)
"""By dtype: what the kernel calls it, and the integers that hold its bits. fp8 becomes fp32."""
_own = threading.local()


def tally_cpu(x: Tensor) -> NDArray[np.int64]:
    """The tally of a contiguous CPU tensor of any dtype but fp64, in the layout of fp32."""
    from floatscope.spectrum.kernels import numba_tally as kernel

    kind, integer, bits_type = _KINDS.get(x.dtype, _FP8)
    bits = x.detach().reshape(-1).view(integer).numpy().view(bits_type)
    values = None if x.dtype in _KINDS else _values(x.dtype)
    largest = [0]

    def piece(start: int, stop: int, sums: Counts) -> None:
        tables = getattr(_own, "tables", None)
        if tables is None:
            tables = _own.tables = np.zeros(kernel.NUM_TABLES * kernel.TABLE, np.uint64)
        if values is None:
            amax = kernel.tally_span(bits, kind, start, stop, tables, sums)
        else:
            wide = values[bits[start:stop]]
            amax = kernel.tally_span(wide, kind, 0, stop - start, tables, sums)
        largest.append(int(amax))

    sums = spread(piece, bits.size, 2 * kernel.PLACES + 2, kernel.PIECE)
    tally = np.zeros(FP32.size, np.int64)
    kernel.arrange(sums, max(largest), tally)
    return tally


@cache
def _values(dtype: torch.dtype) -> NDArray[np.uint32]:
    """The bits of fp32 of all codes of a dtype of 8 bits."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    return codes.to(torch.float32).view(torch.int32).numpy().view(np.uint32)
