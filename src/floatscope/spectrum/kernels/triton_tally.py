"""Tallies on CUDA devices: a Triton kernel with the CPU kernel's results, in the layout FP32.

An element with a cell takes one atomic addition to a table in global memory, of its count and the
square of its rounded significand, packed into one number of 64 bits. The numbers of a trained
network crowd in a few hundred cells, and an addition waits for the last one to the same cell. So
programs that run at the same time add to different tables, and no more programs share a table than
a packed sum has room for. A second kernel adds the tables to the tally and clears them.

Histograms in shared memory (tl.histogram) would not wait on each other, but they have a power of
two of bins: with those for 13,296 cells, one program fills a processor. They do not add squares.

What has no cell, and the largest magnitude, are collected lane by lane and written once a program.
Sums of integers are the same in any order, so the result is deterministic. Values are loaded as
integers; floating point serves only to widen fp16 and to find the leading bits of whole numbers,
both exact and free of fp32's subnormal numbers.

Only a CUDA device runs the compiled kernel, and none has so far: tests run it in Triton's
interpreter, on the CPU, and compile it to machine code.
"""

# ruff: noqa: ANN001, ANN202
# pyright: reportMissingImports=false, reportInvalidTypeForm=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportCallIssue=false, reportOperatorIssue=false
# What Triton compiles is not what it looks like to a type checker, and Triton may be missing.

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from floatscope.spectrum.tally import FP32, OTHERS, SIGNIFICAND_BITS, Layout

BLOCK = 1024
"""Elements that a program counts at a time."""
BLOCKS = 8
"""Blocks of a program, at most 255: what a byte of marks holds."""
SHARE = 16
"""Programs of a table, at most. They add 2^17 squares of up to 2^28, less than SQUARE_BITS hold."""
PIECE = 1 << 24
"""Elements of a launch, so that indices have 32 bits; it has 128 tables of 106 kB each."""
OCTAVES_EACH, TABLES_AT_ONCE = 1, 32
"""Octaves of a program of the second kernel, and tables that it loads at a time."""

KINDS = {torch.float32: (0, torch.int32), torch.bfloat16: (1, torch.int16),
         torch.float16: (2, torch.int16)}  # fmt: skip
"""The dtypes that the kernel reads, and the integers that it reads them as."""

CELLS, CLASSES = tl.constexpr(FP32.num_cells), tl.constexpr(FP32.num_classes)
OCTAVES, FIRST_OTHER = tl.constexpr(FP32.num_octaves), tl.constexpr(FP32.size - len(OTHERS))
NUM_OTHERS, AMAX = tl.constexpr(len(OTHERS) - 1), tl.constexpr(FP32.size - 1)
SQUARE_BITS, ONE = tl.constexpr(46), tl.constexpr(1 << 46)
SQUARES, COUNTS = tl.constexpr((1 << 46) - 1), tl.constexpr((1 << 18) - 1)
DROP = tl.constexpr(FP32.fraction_bits + 1 - SIGNIFICAND_BITS)
HALF = tl.constexpr(1 << (DROP.value - 1))
MAX32, INF = tl.constexpr(0x7FFF_FFFF), tl.constexpr(0x7F80_0000)
HIDDEN, FRACTION = tl.constexpr(0x0080_0000), tl.constexpr(0x007F_FFFF)


def tally_triton(x: Tensor, layout: Layout = FP32) -> Tensor:
    """`tally_anywhere` for the layout FP32; other dtypes than `KINDS` become fp32, by pieces."""
    assert layout is FP32
    x = x.detach().view(-1)
    tally = torch.zeros(FP32.size, dtype=torch.int64, device=x.device)
    tables = tally.new_zeros(
        triton.cdiv(min(x.numel(), PIECE), BLOCK * BLOCKS * SHARE), FP32.num_cells
    )
    # Only with CUDA, and so not tested: Triton launches on the current device, not on that of x.
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        for start in range(0, x.numel(), PIECE):
            piece = x[start : start + PIECE]
            if x.dtype not in KINDS:
                piece = piece.to(torch.float32)
            _launch(piece, tables, tally)
    return tally


def _launch(x: Tensor, tables: Tensor, tally: Tensor) -> None:
    kind, integer = KINDS[x.dtype]
    programs = triton.cdiv(x.numel(), BLOCK * BLOCKS)
    num_tables = triton.cdiv(programs, SHARE)
    _count[(programs,)](
        x.view(integer), tables, tally, x.numel(), num_tables, KIND=kind, BLOCK=BLOCK, BLOCKS=BLOCKS
    )
    _collect[(triton.cdiv(FP32.num_octaves, OCTAVES_EACH),)](
        tables,
        tally,
        num_tables,
        TABLES=TABLES_AT_ONCE,
        EACH=OCTAVES_EACH,
        LANES=triton.next_power_of_2(FP32.num_classes),
    )


@triton.jit(do_not_specialize=["num_tables"])
def _count(
    x, tables, tally, size, num_tables,
    KIND: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Add BLOCKS blocks to a table, and to the tally what has no cell."""
    table = tables + (tl.program_id(0) % num_tables) * CELLS
    begin = tl.program_id(0) * BLOCK * BLOCKS
    marks = tl.zeros((BLOCK,), tl.int64)
    largest = tl.zeros((BLOCK,), tl.int32)
    for first in range(begin, tl.minimum(begin + BLOCK * BLOCKS, size), BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < size
        bits = _widened(tl.load(x + i, mask=inside, other=0), KIND)
        a = bits & MAX32
        has_cell = (a != 0) & (a < INF)
        octave, f = _normalized(a)
        m = ((f | HIDDEN) + HALF) >> DROP
        packed = (m * m).to(tl.int64) + ONE
        place = octave * CLASSES + _class_of(f)
        tl.atomic_add(table + place, packed, mask=inside & has_cell, sem="relaxed")
        other = tl.where(a == 0, 0, 2) + (bits < 0).to(tl.int32)
        other = tl.where(a > INF, 4, other).to(tl.int64)
        marks += tl.where(inside & ~has_cell, tl.cast(1, tl.int64) << (8 * other), 0)
        largest = tl.maximum(largest, tl.where(has_cell, a, 0))
    for place in tl.static_range(NUM_OTHERS):
        found = tl.sum((marks >> (8 * place)) & 255, axis=0)
        tl.atomic_add(tally + FIRST_OTHER + place, found, mask=found != 0, sem="relaxed")
    tl.atomic_max(tally + AMAX, tl.cast(tl.max(largest, axis=0), tl.int64), sem="relaxed")


@triton.jit
def _widened(loaded, KIND: tl.constexpr):
    """Bits of fp32 from those of fp32, bf16 or fp16."""
    if KIND == 0:
        bits = loaded
    elif KIND == 1:
        bits = loaded.to(tl.int32) << 16
    else:
        single = (loaded & 0x7FFF).to(tl.float16, bitcast=True).to(tl.float32)
        # NaN may lose its sign and its payload, which no tally asks for.
        bits = single.to(tl.int32, bitcast=True) | ((loaded < 0).to(tl.int32) << 31)
    return bits


@triton.jit
def _normalized(a):
    """Octaves of magnitudes, counted from the lowest, and their fractions."""
    field, f = a >> 23, a & FRACTION
    whole = _real_bits(f)
    is_small = field == 0
    octave = tl.where(is_small, (whole >> 23) - 127, field + 22)
    return octave, tl.where(is_small, whole & FRACTION, f)


@triton.jit
def _class_of(f):
    """Classes of fractions."""
    twice = 2 * HIDDEN - 2 * f
    half = tl.minimum((_real_bits(twice - 1) >> 22) | 1, _real_bits(twice) >> 22)
    return tl.where(f == 0, 0, 302 - half)


@triton.jit
def _real_bits(whole):
    """The bits of whole numbers up to 2^24 as fp32."""
    return whole.to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit(do_not_specialize=["num_tables"])
def _collect(
    tables, tally, num_tables, TABLES: tl.constexpr, EACH: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """Move EACH octaves of all tables to the tally, where no other program changes them."""
    octave = tl.program_id(0) * EACH + tl.arange(0, EACH)
    lane = tl.arange(0, LANES)
    cell = octave[:, None] * CLASSES + lane[None, :]
    is_cell = (octave < OCTAVES)[:, None] & (lane < CLASSES)[None, :]
    counts, squares = tl.zeros((EACH, LANES), tl.int64), tl.zeros((EACH, LANES), tl.int64)
    for first in range(0, num_tables, TABLES):
        table = first + tl.arange(0, TABLES)
        at = tables + table[:, None, None] * CELLS + cell[None, :, :]
        mask = (table < num_tables)[:, None, None] & is_cell[None, :, :]
        held = tl.load(at, mask=mask, other=0)
        counts += tl.sum((held >> SQUARE_BITS) & COUNTS, axis=0)
        squares += tl.sum(held & SQUARES, axis=0)
        tl.store(at, tl.zeros((TABLES, EACH, LANES), tl.int64), mask=mask)
    counts += tl.load(tally + cell, mask=is_cell, other=0)
    tl.store(tally + cell, counts, mask=is_cell)
    at = tally + CELLS + octave
    total = tl.load(at, mask=octave < OCTAVES, other=0) + tl.sum(squares, axis=1)
    tl.store(at, total, mask=octave < OCTAVES)
