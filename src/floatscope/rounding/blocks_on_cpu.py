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
from floatscope.rounding.hadamard import Hadamard
from floatscope.rounding.jobs import Amax, Region, Strips
from floatscope.rounding.on_cpu import BITS, NARROW, SMALL_PIECE, STREAM_BYTES, address_of
from floatscope.rounding.receipt import NUM_COUNTS
from floatscope.rounding.reference_blocks import tensor_encode, top_fraction_bits
from floatscope.rounding.threads import Counts, share, spread

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
    transform: Hadamard | None = None,
    transposed: bool = False,
) -> tuple[Counts, np.float32 | None]:
    """Round contiguous `x` (up to 32 bits) into contiguous `out`, which may be `x`.

    `scales` receives the stored ones. A transform is one that `can_turn`, and `transposed` counts
    elements down the columns, if `can_count_columns`.

    Returns:
        The counts of `receipt.COUNTS`, zeros if `plain`, and NVFP4's factor of the whole tensor.
    """
    amax, encode = np.uint32(0), None
    if layout.whole_tensor:
        amax = _amax(x, finite=False)
    if form.rule is ScaleRule.NVFP4:
        largest = _turned_amax(x, transform, layout) if transform else _amax(x, finite=True)
        encode = tensor_encode(largest.view(np.float32), form)
    work = _strips(form, cast, plain, apart)
    how = transform, layout.rows if transposed else 1
    stored = scales.reshape(layout.matrices * layout.strips, layout.blocks)
    if layout.rows % layout.height == 0:  # the matrices stack without a gap
        rows = layout.matrices * layout.rows
        return work.run(x, out, rows, layout, stored, 0, amax, encode, how), encode
    counts, size = np.zeros(NUM_COUNTS, np.int64), layout.rows * layout.columns
    matrices = (x.view(-1, size), out.view(-1, size), np.split(stored, layout.matrices))
    for m, (source, target, kept) in enumerate(zip(*matrices, strict=True)):
        counts += work.run(source, target, layout.rows, layout, kept, m * size, amax, encode, how)
    return counts, encode


class _Strips:
    """What all strips of a tensor have in common."""

    def __init__(self, form: BlockFormat, cast: Cast, plain: bool, apart: bool) -> None:
        chance = cast.rules.rounding == "stochastic"
        self.divides = form.rule is ScaleRule.AMAX_DIVIDE
        grid = grid_of(cast.form, cast.rules, 32)
        is_fast = _has_steps(grid, cast) if chance else _has_anchor(grid)
        self._job = Strips(
            one=1, grid=address_of(grid), element=address_of(_facts(form.element)), apart=apart,
            rule=_RULES.index(form.rule), key=cast.key, spare=cast.spare, chance=chance,
            plain=plain and is_fast and not (chance and self.divides),
        )  # fmt: skip
        self._grid = grid  # whose address the job has

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
        how: tuple[Hadamard | None, int],
    ) -> Counts:
        """Round the strips of one matrix, or of several that stack without a gap.

        `how`: what comes first, and how far apart neighbors of a row are counted.
        """
        height, width, columns = layout.height, layout.width, layout.columns
        transform, stride = how
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
        is_direct = {x.dtype, out.dtype} <= NARROW
        job = Strips.from_buffer_copy(self._job)
        job.size, job.stored, job.amax = -(-rows // height), address_of(stored), amax
        job.rows, job.columns, job.height, job.width = rows, columns, height, width
        job.offset, job.stride = offset, stride
        job.tensor_encode = 1.0 if encode is None else encode
        job.backwards = layout.whole_tensor or encode is not None
        if transform is not None:
            job.signs = address_of(transform.signs)
            job.group, job.factor = transform.size, transform.factor
        per_piece = max(_piece(x.numel(), is_direct) // (height * columns), 1)
        if is_direct:
            job.piece, job.x, job.out = per_piece, x.data_ptr(), out.data_ptr()
            job.stream = self._can_stream(out, columns, width)
            job.shared = job.x == job.out
            counts = share(_region(x.dtype, out.dtype, transform is not None), job)
        else:
            x, out = x.view(rows, columns), out.view(rows, columns)
            counts = self._converted(x, out, job, per_piece)
        if scale is not None:
            scale[:] = stored[0]
        return counts

    def _can_stream(self, out: Tensor, columns: int, width: int) -> bool:
        """Whether rows of `out` can be stored past the caches, and are worth it."""
        if out.dtype is not torch.float32 or out.nbytes < STREAM_BYTES or self.divides:
            return False
        return width in STREAM_WIDTHS and columns % 16 == 0 and out.data_ptr() % 64 == 0

    def _converted(self, x: Tensor, out: Tensor, job: Strips, per_piece: int) -> Counts:
        """The same of matrices of other dtypes: pieces become fp32 and are given back."""
        per_strip = -(-job.columns // job.width)
        region = _region(torch.float32, torch.float32, False)

        def strips(first: int, last: int, counts: Counts) -> None:
            start, stop = first * job.height, min(last * job.height, job.rows)
            given = x[start:stop].to(torch.float32)
            result = torch.empty_like(given)
            part = Strips.from_buffer_copy(job)
            part.x, part.out, part.rows = given.data_ptr(), result.data_ptr(), stop - start
            part.size = part.piece = last - first
            part.stored += 4 * first * per_strip
            part.offset += start * job.columns
            counts += share(region, part)
            out[start:stop].copy_(result)

        return spread(strips, job.size, NUM_COUNTS, per_piece)


def _piece(size: int, is_direct: bool) -> int:
    """Elements that a thread takes at a time of a tensor of this size."""
    return max(PIECE, size // PIECES) if is_direct else SMALL_PIECE


def can_turn(layout: Layout, transform: Hadamard) -> bool:
    """Whether the kernels of `NARROW` dtypes can transform the rows of a matrix on the way."""
    is_whole = layout.height % transform.size == 0 and layout.rows % transform.size == 0
    return is_whole and not layout.whole_tensor


def can_count_columns(layout: Layout) -> bool:
    """Whether they can count elements down the columns for stochastic rounding."""
    size = layout.matrices * layout.rows * layout.columns
    return layout.width == 1 < layout.height and size < 1 << 31


@cache
def _region(given: torch.dtype, wanted: torch.dtype, turns: bool) -> Region:
    from floatscope.rounding.kernels.numba_jobs import strips_region

    return strips_region(BITS[given], BITS[wanted], turns)


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
    if x.dtype not in NARROW:
        flat, found = x.reshape(-1), [np.uint32(0)]

        def piece(start: int, stop: int, counts: Counts) -> None:
            found.append(_amax(flat[start:stop].to(torch.float32), finite=finite))

        spread(piece, x.numel(), 0, SMALL_PIECE)
        return max(found)
    up = 16 if x.dtype is torch.bfloat16 else 0
    job = Amax(size=x.numel(), piece=_piece(x.numel(), True), one=1, x=x.data_ptr())
    return np.uint32(_largest(x, job, finite, turns=False) << up)


def _turned_amax(x: Tensor, transform: Hadamard, layout: Layout) -> np.uint32:
    """The same of the finite elements of a matrix's transform: bits of fp32."""
    whole = transform.size * layout.columns
    job = Amax(
        size=x.numel() // whole, piece=max(_piece(x.numel(), True) // whole, 1), one=1,
        x=x.data_ptr(), columns=layout.columns, signs=address_of(transform.signs),
        group=transform.size, factor=transform.factor,
    )  # fmt: skip
    return np.uint32(_largest(x, job, True, turns=True))


def _largest(x: Tensor, job: Amax, finite: bool, *, turns: bool) -> int:
    """In the bits of fp32, or of bf16 that is not transformed."""
    from floatscope.rounding.kernels.numba_jobs import amax_region

    region = amax_region(BITS[x.dtype], turns)
    largest = int(share(region, job)[0])
    infinity = 0x7F80 if x.dtype is torch.bfloat16 and not turns else 0x7F80_0000
    if not finite or largest < infinity:
        return largest
    job.taken = job.counts[0] = 0
    job.finite = True
    return int(share(region, job)[0])
