"""Block formats on the CPU: the Numba kernels over strips of blocks, on several threads."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.formats import BlockFormat, FloatFormat, IntFormat, ScaleRule
from floatscope.formats.values import octave_of
from floatscope.rounding.block_layout import Layout
from floatscope.rounding.cast import Cast
from floatscope.rounding.grid import INDEX, grid_of
from floatscope.rounding.on_cpu import SMALL_PIECE, STREAM_BYTES, bits_of, piece_of
from floatscope.rounding.receipt import NUM_COUNTS
from floatscope.rounding.reference_blocks import tensor_encode, top_fraction_bits
from floatscope.rounding.threads import Counts, spread

PIECE, PIECES = 1 << 19, 16
"""Elements of the strips that a thread takes at a time, if a strip is not longer; and the number of
pieces from which they grow with the tensor."""
STREAM_WIDTHS = (1, 16, 32)
"""Widths of blocks whose kernels can store past the caches."""
LONGEST_ROW = 1 << 13
"""Rows of short blocks are folded or joined to this length: threads share them, and each has its
price."""

SHORTEST_ROW = 256
"""A tensor with one scale is cut into rows of this length or longer, or not at all."""

_RULES = list(ScaleRule)


def blocks_on_cpu(
    x: Tensor,
    out: Tensor,
    scales: NDArray[np.float32],
    form: BlockFormat,
    cast: Cast,
    layout: Layout,
    plain: bool,
    apart: bool,
) -> tuple[Counts, np.float32 | None]:
    """Round contiguous `x` (up to 32 bits) into contiguous `out`, which may be `x`.

    `scales` receives the stored ones.

    Returns:
        The counts of `receipt.COUNTS`, zeros if `plain`, and NVFP4's factor of the whole tensor.
    """
    amax, encode = np.uint32(0), None
    if layout.whole_tensor:
        amax = _amax(x, finite=False)
    if form.rule is ScaleRule.NVFP4:
        encode = tensor_encode(_amax(x, finite=True).view(np.float32), form)
    work = _strips(form, cast, plain, apart)
    stored = scales.reshape(layout.matrices * layout.strips, layout.blocks)
    if layout.rows % layout.height == 0:  # the matrices stack without a gap
        rows = layout.matrices * layout.rows
        return work.run(x, out, rows, layout, stored, 0, amax, encode), encode
    counts, size = np.zeros(NUM_COUNTS, np.int64), layout.rows * layout.columns
    matrices = (x.view(-1, size), out.view(-1, size), np.split(stored, layout.matrices))
    for m, (source, target, kept) in enumerate(zip(*matrices, strict=True)):
        counts += work.run(source, target, layout.rows, layout, kept, m * size, amax, encode)
    return counts, encode


class _Strips:
    """What all strips of a tensor have in common."""

    def __init__(self, form: BlockFormat, cast: Cast, plain: bool, apart: bool) -> None:
        self.chance = cast.rules.rounding == "stochastic"
        self.rule = _RULES.index(form.rule)
        self.divides = form.rule is ScaleRule.AMAX_DIVIDE
        self.element = _facts(form.element)
        self.grid = grid_of(cast.form, cast.rules, 32)
        is_fast = _has_steps(self.grid, cast) if self.chance else _has_anchor(self.grid)
        self.plain = plain and is_fast and not (self.chance and self.divides)
        self.apart = apart
        self.key, self.spare = np.uint64(cast.key), np.uint32(cast.spare)

    def run(
        self,
        x: Tensor,
        out: Tensor,
        rows: int,
        layout: Layout,
        stored: NDArray[Any],
        offset: int,
        amax: np.uint32,
        encode: np.float32 | None,
    ) -> Counts:
        """Round the strips of one matrix, or of several that stack without a gap."""
        factor = np.float32(1) if encode is None else encode
        height, width, columns = layout.height, layout.width, layout.columns
        scale = None
        if layout.whole_tensor:
            common = math.gcd(columns, LONGEST_ROW)
            columns = common if common >= SHORTEST_ROW else columns
            rows, width = x.numel() // columns, columns
            scale, stored = stored, np.empty((rows, 1), np.float32)
        elif height == 1 and columns % width == 0 and width < LONGEST_ROW:
            columns = width * math.gcd(x.numel() // width, LONGEST_ROW // width)
            rows = x.numel() // columns
            stored = stored.reshape(rows, -1)
        kernel, is_direct = _kernel_for(x.dtype, out.dtype)
        per_piece = max(_piece(x.numel(), is_direct) // (height * columns), 1)
        streams = out.dtype is torch.float32 and out.nbytes >= STREAM_BYTES and not self.divides
        streams = streams and is_direct and width in STREAM_WIDTHS and columns % 16 == 0
        shared = x.data_ptr() == out.data_ptr()
        source = target = None
        if is_direct:
            source, target = bits_of(x).reshape(-1), bits_of(out).reshape(-1)
        else:
            x, out = x.reshape(-1), out.view(-1)

        def strips(first: int, last: int, counts: Counts) -> None:
            start, stop = first * height * columns, min(last * height, rows) * columns
            if source is not None and target is not None:
                given, result = piece_of(source, start, stop, shared), target[start:stop]
            else:
                given = bits_of(x[start:stop].to(torch.float32))
                result = np.empty_like(given)
            kept = stored[first:last].reshape(-1)
            stream = streams and result.ctypes.data % 64 == 0
            kernel(
                given, result, columns, kept, height, width, self.rule,
                self.element, amax, factor, self.apart, self.plain, stream, self.chance, self.grid,
                np.uint64(offset + start), self.key, self.spare, counts,
            )  # fmt: skip
            if not is_direct:
                out[start:stop].copy_(torch.from_numpy(result.view(np.float32)))

        again = layout.whole_tensor or encode is not None
        counts = spread(strips, -(-rows // height), NUM_COUNTS, per_piece, backwards=again)
        if scale is not None:
            scale[:] = stored[0]
        return counts


def _piece(size: int, is_direct: bool) -> int:
    """Elements that a thread takes at a time of a tensor of this size."""
    return max(PIECE, size // PIECES) if is_direct else SMALL_PIECE


@cache
def _kernel_for(given: torch.dtype, wanted: torch.dtype) -> tuple[Any, bool]:
    """What rounds strips of these dtypes, and whether it takes them as they are, not as fp32."""
    from floatscope.rounding.kernels.numba_bf16 import STRIPS
    from floatscope.rounding.kernels.numba_blocks import round_strips

    if given is wanted is torch.float32:
        return round_strips, True
    is_direct = {given, wanted} <= {torch.float32, torch.bfloat16}
    kind = given is torch.bfloat16, wanted is torch.bfloat16
    return (STRIPS[kind], True) if is_direct else (round_strips, False)


def _has_anchor(grid: NDArray[np.uint64]) -> bool:
    """Whether `_plain` of `numba_blocks.py` serves a format: see `_anchored` in numba_elements."""
    drop, top, is_integer = (int(grid[INDEX[n]]) for n in ("drop", "largest", "integer"))
    return (2 <= drop < 23 or bool(is_integer)) and (top >> 23) + drop < 255


def _has_steps(grid: NDArray[np.uint64], cast: Cast) -> bool:
    """Whether `random_row` of `numba_plain.py` serves it: see `stochastic` in numba_chance.py."""
    drop, normal = (int(grid[INDEX[n]]) for n in ("drop", "normal"))
    return (
        not cast.spare and bool(grid[INDEX["negative_zero"]]) and (normal >> 23) + drop > 23 > drop
    )


@cache
def _facts(element: FloatFormat | IntFormat) -> NDArray[np.float64]:
    """What the kernels ask of an element format: octave and fraction bits at the top, and it."""
    return np.array([octave_of(element.max), top_fraction_bits(element), float(element.max)])


@lru_cache(256)
def _strips(form: BlockFormat, cast: Cast, plain: bool, apart: bool) -> _Strips:
    return _Strips(form, cast, plain, apart)


def _amax(x: Tensor, *, finite: bool) -> np.uint32:
    """Bits of the largest magnitude of a tensor, of all elements or of the finite ones.

    The first is quicker to find, and the second only where it is none.
    """
    from floatscope.rounding.kernels.numba_amax import amax_of, finite_amax_of

    found, flat = [0], x.reshape(-1)
    is_direct = x.dtype in (torch.float32, torch.bfloat16)
    infinity = 0x7F80 if x.dtype is torch.bfloat16 else 0x7F80_0000

    def piece(start: int, stop: int, counts: Counts) -> None:
        part = flat[start:stop]
        bits = bits_of(part if is_direct else part.to(torch.float32))
        largest = int(amax_of(bits))
        found.append(int(finite_amax_of(bits)) if finite and largest >= infinity else largest)

    spread(piece, x.numel(), 0, _piece(x.numel(), is_direct))
    return np.uint32(max(found) << (16 if x.dtype is torch.bfloat16 else 0))
