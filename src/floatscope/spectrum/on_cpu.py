"""Tallies on the CPU: the Numba kernel over pieces of a tensor and several threads."""

from __future__ import annotations

import threading

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.rounding.threads import Counts, spread
from floatscope.spectrum.tally import FP32, OTHERS

_KINDS = {torch.float32: (0, np.uint32), torch.bfloat16: (1, np.uint16),
          torch.float16: (2, np.uint16)}  # fmt: skip
_own = threading.local()


def takes(dtype: torch.dtype) -> bool:
    """Whether the kernel reads this dtype as it is."""
    return dtype in _KINDS


def tally_cpu(x: Tensor) -> NDArray[np.int64]:
    """The tally of a contiguous CPU tensor of fp32, fp16 or bf16, in the layout of fp32."""
    from floatscope.spectrum.kernels import numba_tally as kernel

    kind, bits_type = _KINDS[x.dtype]
    integer = torch.int32 if bits_type is np.uint32 else torch.int16
    bits = x.detach().reshape(-1).view(integer).numpy().view(bits_type)
    largest: list[int] = []

    def piece(start: int, stop: int, sums: Counts) -> None:
        tables = getattr(_own, "tables", None)
        if tables is None:
            tables = _own.tables = np.zeros(kernel.NUM_TABLES * kernel.TABLE, np.uint64)
        largest.append(kernel.tally_span(bits, kind, start, stop, tables, sums))

    sums = spread(piece, bits.size, 2 * kernel.PLACES + 2, kernel.PIECE)
    return _arranged(sums, max(largest, default=0))


def _arranged(sums: Counts, amax: int) -> NDArray[np.int64]:
    """From the kernel's places, class by class, to a tally, octave by octave."""
    from floatscope.spectrum.kernels.numba_tally import CLASSES, FIELDS, PLACES, SUBNORMALS

    counts, squares = sums[:PLACES], sums[PLACES : 2 * PLACES]
    minus_zeros, minus_infinities = (int(n) for n in sums[2 * PLACES :])
    normal = counts[: CLASSES * FIELDS].reshape(CLASSES, FIELDS)
    zeros, infinities = int(normal[0, 0]), int(normal[0, -1])
    tally = np.zeros(FP32.size, np.int64)
    cells = tally[: FP32.num_cells].reshape(FP32.num_octaves, CLASSES)
    octaves = tally[FP32.num_cells : FP32.num_cells + FP32.num_octaves]
    in_subnormals = slice(FP32.fraction_bits)
    in_normals = slice(FP32.fraction_bits, None)
    for held, into in ((counts, cells.T), (squares, octaves[None])):
        by_field = held[: CLASSES * FIELDS].reshape(CLASSES, FIELDS)[:, 1:-1]
        by_octave = held[CLASSES * FIELDS :].reshape(CLASSES, SUBNORMALS)[:, : FP32.fraction_bits]
        if into is not None and len(into) == 1:
            by_field, by_octave = by_field.sum(0), by_octave.sum(0)
        into[:, in_normals] = by_field
        into[:, in_subnormals] = by_octave
    tally[-len(OTHERS) :] = (
        zeros - minus_zeros,
        minus_zeros,
        infinities - minus_infinities,
        minus_infinities,
        int(normal[1:, -1].sum()),
        amax,
    )
    return tally
