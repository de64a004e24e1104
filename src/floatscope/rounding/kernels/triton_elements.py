"""Rounding on CUDA devices: one fused Triton kernel, with the results of the CPU kernels.

Values are loaded in their own dtype, widened to the carrier, rounded, repaired at the edges and
stored in the dtype of the result; the CPU kernels say why each step is right. Bits are handled as
integers, with three exceptions: a magnitude changes its width, a whole number becomes a multiple of
the smallest value, both exact, and the short form of nearest-even adds and subtracts. On CUDA an
instruction carries its own rounding, and Triton asks for no flushing of subnormals, so none of them
depends on a mode. A change of width may replace NaN, its sign included, so signs travel apart from
magnitudes.

The rounding and the rules are constants of the compiled kernel, and the numbers of the format are
arguments: another format compiles nothing new, another rule does.

A program rounds one block after another. What is to be counted becomes a mark, one byte for each
count in a word of 64 bits; every lane adds up its marks over the blocks, at most 255, and they are
summed once at the end.

Only a CUDA device runs the compiled kernel, and none has so far: tests run it in Triton's
interpreter, on the CPU, and compile it to machine code. The interpreter loses bf16's subnormals
when it turns them into fp32 and back, so that is done on bits; and it does not keep to the types of
arguments, so the kernel converts them.
"""

# ruff: noqa: ANN001, ANN202
# pyright: reportMissingImports=false, reportInvalidTypeForm=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportCallIssue=false, reportOperatorIssue=false
# What Triton compiles is not what it looks like to a type checker, and Triton may be missing.

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from floatscope.rounding import grid
from floatscope.rounding.cast import Cast
from floatscope.rounding.grid import bits_of, grid_values
from floatscope.rounding.random_bits import GOLDEN, MASK64, MULTIPLIERS
from floatscope.rounding.receipt import NUM_COUNTS

BLOCK = 1024
"""Elements that a program rounds at a time."""
PROGRAMS = 4096
"""From this many programs on, a program takes several blocks."""
MOST_BLOCKS = 255
"""That a program takes: what a byte of marks holds."""
PIECE = 1 << 24
"""Elements at a time of dtypes that the kernel does not read or write itself."""

DIRECT = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The dtypes that it reads and writes."""
NUMBERS = ("drop", "normal", "first_field", "step", "anchor", "largest", "lowest", "flush")
RULES = ("mode", "negative_zero", "overflow", "infinity", "nan", "negative", "zero", "inward")
"""What of a grid are arguments of the kernel, and what its constants."""

FAST_NEAREST, STOCHASTIC = tl.constexpr(grid.FAST_NEAREST), tl.constexpr(grid.STOCHASTIC)
COUNTS = tl.constexpr(NUM_COUNTS)
# The lowest bit of each mark, in the order of receipt.COUNTS.
BEYOND, INFINITE, NANS, SATURATED, BECAME_NAN, RAISED, FLUSHED, LOST_SIGN = (
    tl.constexpr(8 * place) for place in range(NUM_COUNTS)
)
GOLDEN64 = tl.constexpr(GOLDEN)
MIX1, MIX2 = tl.constexpr(0xBF58_476D_1CE4_E5B9), tl.constexpr(0x94D0_49BB_1331_11EB)
HASH1, HASH2 = tl.constexpr(MULTIPLIERS[0]), tl.constexpr(MULTIPLIERS[1])
MAX32, MAX64 = tl.constexpr(0x7FFF_FFFF), tl.constexpr(0x7FFF_FFFF_FFFF_FFFF)


def round_triton(x: Tensor, out: Tensor, cast: Cast, offset: int = 0) -> Tensor:
    """Round `x` into contiguous `out`, which may be `x`; the counts of `receipt.COUNTS`."""
    carrier = cast.carrier(x.dtype)
    x, out = x.reshape(-1), out.view(-1)
    counts = torch.zeros(NUM_COUNTS, dtype=torch.int64, device=x.device)
    # Only with CUDA, and so not tested: Triton launches on the current device, not on that of x.
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        if x.dtype in DIRECT and out.dtype in DIRECT:
            _launch(x, out, counts, cast, carrier, offset)
            return counts
        for start in range(0, x.numel(), PIECE):
            piece = x[start : start + PIECE].to(carrier)
            rounded = torch.empty_like(piece)
            _launch(piece, rounded, counts, cast, carrier, offset + start)
            out[start : start + PIECE].copy_(rounded)
    return counts


def _launch(
    x: Tensor, out: Tensor, counts: Tensor, cast: Cast, carrier: torch.dtype, offset: int
) -> None:
    bits, fraction = (32, 23) if carrier == torch.float32 else (64, 52)
    values = grid_values(cast.form, cast.rules, bits)
    blocks = triton.cdiv(x.numel(), BLOCK)
    if not blocks:
        return
    each = min(triton.cdiv(blocks, PROGRAMS), MOST_BLOCKS)
    _round_spans[(triton.cdiv(blocks, each),)](
        x,
        out,
        counts,
        x.numel(),
        each,
        offset & MASK64,
        cast.key & MASK64,
        **{name: getattr(values, name) for name in NUMBERS},
        **{name.upper(): getattr(values, name) for name in RULES},
        SPARE=cast.spare if values.mode == grid.STOCHASTIC else 0,
        BITS=bits,
        FRACTION=fraction,
        INF=bits_of(math.inf, bits),
        BLOCK=BLOCK,
        sanitize_overflow=False,  # with TRITON_DEBUG=1 the hash would be reported
    )


@triton.jit(do_not_specialize=["each", "offset", "key", *NUMBERS])
def _round_spans(
    x, out, counts, size, each: tl.int32, offset: tl.uint64, key: tl.uint64,
    drop: tl.uint64, normal: tl.uint64, first_field: tl.uint64, step: tl.uint64, anchor: tl.uint64,
    largest: tl.uint64, lowest: tl.uint64, flush: tl.uint64,
    MODE: tl.constexpr, NEGATIVE_ZERO: tl.constexpr, OVERFLOW: tl.constexpr,
    INFINITY: tl.constexpr, NAN: tl.constexpr, NEGATIVE: tl.constexpr, ZERO: tl.constexpr,
    INWARD: tl.constexpr, SPARE: tl.constexpr, BITS: tl.constexpr, FRACTION: tl.constexpr,
    INF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Round `each` blocks a program; `offset` is the logical index of x[0]."""
    T: tl.constexpr = tl.uint32 if BITS == 32 else tl.uint64
    QUIET: tl.constexpr = INF | 1 << (FRACTION - 1)
    drop, normal, first_field, step = drop.to(T), normal.to(T), first_field.to(T), step.to(T)
    anchor, largest, lowest, flush = anchor.to(T), largest.to(T), lowest.to(T), flush.to(T)
    offset, key = offset.to(tl.uint64), key.to(tl.uint64)
    begin = tl.program_id(0).to(tl.int64) * each * BLOCK
    total = tl.zeros((BLOCK,), tl.int64)
    for first in range(begin, tl.minimum(begin + each * BLOCK, size), BLOCK):
        i = first + tl.arange(0, BLOCK).to(tl.int64)
        inside = i < size
        a, negative = _unpacked(tl.load(x + i, mask=inside, other=0.0), BITS)
        if MODE == FAST_NEAREST:
            r = _nearest(a, drop, normal, anchor, BITS)
        else:
            random = _random_words(key, offset + first, BLOCK) if MODE == STOCHASTIC else a
            r = _rounded(
                a, negative, random, drop, normal, first_field, step, MODE, SPARE, BITS, FRACTION
            )
        r, marks = _with_sign(tl.where(r < flush, 0, r), a, negative, NEGATIVE_ZERO, ZERO, BITS)
        r, marks = _repaired(
            r, marks, a, negative, largest, lowest,
            OVERFLOW, INFINITY, NAN, NEGATIVE, INWARD, BITS, INF, QUIET,
        )  # fmt: skip
        if ZERO:
            r, marks = _unsigned(r, marks, a, negative, step, NEGATIVE, ZERO, INF, QUIET)
        tl.store(out + i, _packed(r, out.dtype.element_ty, BITS), mask=inside)
        total += tl.where(inside, marks, 0)
    for place in tl.static_range(COUNTS):
        found = tl.sum((total >> (8 * place)) & 255, axis=0)
        tl.atomic_add(counts + place, found, mask=found != 0, sem="relaxed")


@triton.jit
def _unpacked(value, BITS: tl.constexpr):
    """Magnitudes of loaded floats in the bits of the carrier, and whether they are negative."""
    if value.dtype == tl.float64:
        bits = value.to(tl.uint64, bitcast=True)
        magnitude, negative = bits & MAX64, bits > MAX64
    else:
        if value.dtype == tl.float32:
            bits = value.to(tl.uint32, bitcast=True)
        elif value.dtype == tl.bfloat16:
            bits = value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        else:
            half = value.to(tl.uint16, bitcast=True)
            single = (half & 0x7FFF).to(tl.float16, bitcast=True).to(tl.float32)
            sign = (half & 0x8000).to(tl.uint32) << 16
            bits = (single.to(tl.uint32, bitcast=True) & MAX32) | sign
        magnitude, negative = bits & MAX32, bits > MAX32
        if BITS == 64:
            double = magnitude.to(tl.float32, bitcast=True).to(tl.float64)
            magnitude = double.to(tl.uint64, bitcast=True) & MAX64
    return magnitude, negative


@triton.jit
def _packed(bits, dtype: tl.constexpr, BITS: tl.constexpr):
    """Bits of the carrier as floats of a dtype that holds them."""
    sign = bits >> (BITS - 1)
    magnitude = bits << 1 >> 1
    if dtype == tl.float64:
        if BITS == 32:
            double = magnitude.to(tl.float32, bitcast=True).to(tl.float64)
            magnitude = double.to(tl.uint64, bitcast=True) & MAX64
        result = magnitude | (sign.to(tl.uint64) << 63)
    else:
        sign = sign.to(tl.uint32)
        if BITS == 64:
            single = magnitude.to(tl.float64, bitcast=True).to(tl.float32)
            magnitude = single.to(tl.uint32, bitcast=True) & MAX32
        if dtype == tl.float32:
            result = magnitude | (sign << 31)
        elif dtype == tl.bfloat16:
            result = ((magnitude >> 16) | (sign << 15)).to(tl.uint16)
        else:
            half = magnitude.to(tl.float32, bitcast=True).to(tl.float16)
            result = (half.to(tl.uint16, bitcast=True) & 0x7FFF) | (sign << 15).to(tl.uint16)
    return result.to(dtype, bitcast=True)


@triton.jit
def _nearest(a, drop, normal, anchor, BITS: tl.constexpr):
    """Nearest, ties to even, of finite magnitudes; `_repaired` looks at the largest once more."""
    REAL: tl.constexpr = tl.float32 if BITS == 32 else tl.float64
    half = (tl.cast(1, a.dtype) << drop) >> 1
    r = (a + (half - 1) + ((a >> drop) & 1)) >> drop << drop
    shift = anchor.to(REAL, bitcast=True)
    on_grid = (a.to(REAL, bitcast=True) + shift) - shift
    return tl.where(a < normal, on_grid.to(a.dtype, bitcast=True), r)


@triton.jit
def _rounded(
    a, negative, random, drop, normal, first_field, step,
    MODE: tl.constexpr, SPARE: tl.constexpr, BITS: tl.constexpr, FRACTION: tl.constexpr,
):  # fmt: skip
    """What `_nearest` does, by any mode, from the explicit significand."""
    REAL: tl.constexpr = tl.float32 if BITS == 32 else tl.float64
    field = a >> FRACTION
    hidden = (field > 0).to(a.dtype) << FRACTION
    significand = (a & ((1 << FRACTION) - 1)) | hidden
    field = tl.maximum(field, 1)
    on_grid = a < normal
    lost = drop + tl.where(on_grid & (field < first_field), first_field - field, 0)
    shift = tl.minimum(lost, BITS - 1)  # all of them lost then, and below one half
    unit = tl.cast(1, a.dtype) << shift
    rest = significand & (unit - 1)
    whole = significand >> shift
    if MODE == STOCHASTIC:
        up = _by_chance(rest, lost, random, SPARE, BITS)
    else:
        up = _takes_larger(rest, unit >> 1, (whole & 1) == 1, negative, MODE)
    r = a - rest + tl.where(up, unit, 0)
    multiple = (whole + up.to(a.dtype)).to(REAL) * step.to(REAL, bitcast=True)
    return tl.where(on_grid, multiple.to(a.dtype, bitcast=True), r)


@triton.jit
def _takes_larger(rest, half, odd, negative, MODE: tl.constexpr):
    """Whether the neighbor of larger magnitude is taken, in the modes without chance."""
    inexact = rest != 0
    if MODE == 0:
        up = (rest > half) | ((rest == half) & odd)
    elif MODE == 1:
        up = rest >= half
    elif MODE == 2:
        up = rest < 0
    elif MODE == 3:
        up = ~negative
    elif MODE == 4:
        up = negative
    else:
        up = ~odd
    return up & inexact


@triton.jit
def _by_chance(rest, lost, random, SPARE: tl.constexpr, BITS: tl.constexpr):
    """The same by chance: how far a value is from its smaller neighbor, cut to 32 bits."""
    # Shifts stay below the width; fp32 always loses a bit.
    left = tl.where(lost < 32, 32 - lost, 0)
    right = tl.where(lost > 32, tl.minimum(lost - 32, BITS - 1), 0)
    cut = ((rest << left) >> right).to(tl.uint32)
    if SPARE:
        cut = (cut >> SPARE) + ((cut >> (SPARE - 1)) & 1)
        random = random >> SPARE
    return random < cut


@triton.jit
def _random_words(key, start, BLOCK: tl.constexpr):
    """The random bits of the elements from a logical index on: random_bits.random_bits.

    A block may cross a multiple of 2^32, where the words of the key change.
    """
    low = start.to(tl.uint32)
    index = low + tl.arange(0, BLOCK).to(tl.uint32)
    crossed = index < low
    first, second = _words(key, start >> 32)
    first_after, second_after = _words(key, (start >> 32) + 1)
    h = index ^ tl.where(crossed, first_after, first)
    h = (h ^ (h >> 16)) * HASH1
    h = h + tl.where(crossed, second_after, second)
    h = (h ^ (h >> 15)) * HASH2
    return h ^ (h >> 15)


@triton.jit
def _words(key, high):
    """The two words of a key for elements whose index has this upper half: random_bits.words."""
    z = key + high * GOLDEN64
    z = (z ^ (z >> 30)) * MIX1
    z = (z ^ (z >> 27)) * MIX2
    z = z ^ (z >> 31)
    return z.to(tl.uint32), (z >> 32).to(tl.uint32)


@triton.jit
def _with_sign(
    r, a, negative, NEGATIVE_ZERO: tl.constexpr, ZERO: tl.constexpr, BITS: tl.constexpr
):  # fmt: skip
    """Puts the signs back; the results, and the marks of zeros."""
    is_zero = r == 0
    sign = negative.to(r.dtype) << (BITS - 1)
    marks = (is_zero & (a != 0)).to(tl.int64) << FLUSHED
    if not NEGATIVE_ZERO:
        sign = tl.where(is_zero, 0, sign)
        marks |= (is_zero & negative).to(tl.int64) << LOST_SIGN
    if ZERO:  # the format has no zero: see `_unsigned`
        marks = marks * 0
    return r | sign, marks


@triton.jit
def _repaired(
    out, marks, a, negative, largest, lowest,
    OVERFLOW: tl.constexpr, INFINITY: tl.constexpr, NAN: tl.constexpr, NEGATIVE: tl.constexpr,
    INWARD: tl.constexpr, BITS: tl.constexpr, INF: tl.constexpr, QUIET: tl.constexpr,
):  # fmt: skip
    """Overflow, infinity and NaN by the rules."""
    sign = negative.to(a.dtype) << (BITS - 1)
    limit = tl.where(negative, lowest, largest)
    nan, infinite = a > INF, a == INF
    beyond = ((out << 1 >> 1) > limit) & (a < INF)
    marks |= (nan.to(tl.int64) << NANS) | (infinite.to(tl.int64) << INFINITE)
    if NEGATIVE > 2:  # `_unsigned` decides
        beyond, infinite = beyond & ~negative, infinite & ~negative
    inward = beyond & (((INWARD >> negative.to(tl.int32)) & 1) == 1)
    outward = beyond & ~inward
    marks |= (beyond.to(tl.int64) << BEYOND) | (inward.to(tl.int64) << SATURATED)
    marks |= _fate(outward, OVERFLOW) | _fate(infinite, INFINITY)
    out = tl.where(inward, limit | sign, out)
    out = tl.where(outward, _beyond(limit, sign, OVERFLOW, INF, QUIET), out)
    out = tl.where(infinite, _beyond(limit, sign, INFINITY, INF, QUIET), out)
    if NAN == 0:
        of_nan = sign | QUIET
    elif NAN == 1:
        of_nan = sign * 0 + largest
    elif NAN == 3:
        of_nan = sign ^ (1 << (BITS - 1))
    else:
        of_nan = sign * 0
    return tl.where(nan, of_nan, out), marks


@triton.jit
def _fate(chosen, POLICY: tl.constexpr):
    """Marks of the elements that a policy decides on."""
    if POLICY == 0:
        marks = chosen.to(tl.int64) << SATURATED
    elif POLICY == 1:
        marks = chosen.to(tl.int64) * 0
    elif POLICY == 2:
        marks = chosen.to(tl.int64) << BECAME_NAN
    else:
        marks = chosen.to(tl.int64) << RAISED
    return marks


@triton.jit
def _beyond(limit, sign, POLICY: tl.constexpr, INF: tl.constexpr, QUIET: tl.constexpr):
    """What the policies make of a magnitude beyond the largest value."""
    if POLICY == 0:
        result = limit | sign
    elif POLICY == 1:
        result = sign | INF
    else:
        result = sign * 0 + QUIET
    return result


@triton.jit
def _unsigned(
    out, marks, a, negative, step,
    NEGATIVE: tl.constexpr, ZERO: tl.constexpr, INF: tl.constexpr, QUIET: tl.constexpr,
):  # fmt: skip
    """Formats without zero and sign: zeros, negatives and what rounded to zero."""
    is_zero = a == 0
    magnitude = out << 1 >> 1
    r = tl.where(magnitude == 0, step, magnitude)
    r = tl.where(is_zero, step if ZERO == 1 else step * 0 + QUIET, r)
    marks |= _fate(is_zero, ZERO)
    if NEGATIVE > 2:
        minus = negative & ~is_zero & (a <= INF)
        r = tl.where(minus, step if NEGATIVE == 3 else step * 0 + QUIET, r)
        marks |= _fate(minus, NEGATIVE - 2)
    return tl.where(a > INF, out, r), marks
