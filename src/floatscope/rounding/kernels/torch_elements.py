"""Rounding with Torch operations: the same results as the CPU kernels, on any device.

One operation after another over tensors of integers; the CPU kernels say why each step is right.
Tensors of uint32 do not exist everywhere, so bits are signed integers: magnitudes are never
negative, and the sign is the sign.
"""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope.rounding.grid import Grid
from floatscope.rounding.random_bits import MASK32, MULTIPLIERS, words
from floatscope.rounding.receipt import COUNTS

_INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}


def round_bits(
    x: Tensor, g: Grid, offset: int | Tensor, key: int, spare: int
) -> tuple[Tensor, Tensor]:
    """Round a contiguous fp32 or fp64 tensor; the carrier is its dtype.

    `offset` is the logical index of the first element, or the indices of all.

    Returns:
        The rounded tensor, and the counts of `receipt.COUNTS` as an int64 tensor on its device.
    """
    bits = x.view(_INTEGER[x.dtype])
    magnitude = bits & torch.iinfo(bits.dtype).max
    negative = bits < 0
    rounded = _rounded(magnitude, negative, g, offset, key, spare)
    counts: dict[str, Tensor] = {}
    if g.flush:
        rounded = torch.where(rounded < g.flush, 0, rounded)
    is_zero = rounded == 0
    never = torch.zeros_like(is_zero)
    lost = is_zero & negative if not g.negative_zero else never
    counts["flushed"] = never if g.zero else is_zero & (magnitude != 0)
    counts["lost_sign"] = never if g.zero else lost
    out = torch.where(negative & ~lost, rounded | torch.iinfo(bits.dtype).min, rounded)
    out = _repaired(out, rounded, magnitude, negative, g, counts)
    if g.zero:
        out = _unsigned(out, magnitude, negative, g, counts)
    return out.view(x.dtype), torch.stack([counts[name].sum() for name in COUNTS])


def _shape(bits: Tensor) -> tuple[int, int, int]:
    """Width, fraction bits and the bits of infinity of the carrier."""
    return (32, 23, 0x7F80_0000) if bits.dtype == torch.int32 else (64, 52, 0x7FF0_0000_0000_0000)


def _rounded(
    a: Tensor, negative: Tensor, g: Grid, offset: int | Tensor, key: int, spare: int
) -> Tensor:
    """Magnitudes of the results; what lies beyond the largest value is not repaired yet."""
    width, fraction, infinity = _shape(a)
    hidden = 1 << fraction
    field = a >> fraction
    significand = (a & (hidden - 1)) | torch.where(field > 0, hidden, 0).to(a.dtype)
    on_grid = a < g.normal
    lost = g.drop + (g.first_field - field.clamp(min=1)).clamp(min=0)
    lost = torch.where(on_grid, lost, g.drop)
    shift = lost.clamp(max=width - 2)
    unit = torch.ones_like(a) << shift
    rest = significand & (unit - 1)
    whole = significand >> shift
    up = _takes_larger(whole, rest, unit, lost, negative, g, offset, key, spare)
    up = up.to(a.dtype)
    normal = a - rest + up * unit
    step = torch.tensor([g.step], dtype=a.dtype, device=a.device).view(_float_of(a))
    grid = ((whole + up).to(step.dtype) * step).view(a.dtype)
    return torch.where(a >= infinity, a, torch.where(on_grid, grid, normal))


def _float_of(bits: Tensor) -> torch.dtype:
    return torch.float32 if bits.dtype == torch.int32 else torch.float64


def _takes_larger(
    whole: Tensor,
    rest: Tensor,
    unit: Tensor,
    lost: Tensor,
    negative: Tensor,
    g: Grid,
    offset: int | Tensor,
    key: int,
    spare: int,
) -> Tensor:
    """Whether the neighbor of larger magnitude is taken."""
    half = unit >> 1
    odd = (whole & 1) == 1
    inexact = rest != 0
    match g.mode:
        case 1:
            return (rest >= half) & inexact
        case 2:
            return torch.zeros_like(inexact)
        case 3:
            return inexact & ~negative
        case 4:
            return inexact & negative
        case 5:
            return inexact & ~odd
        case 6:
            return _by_chance(rest, lost, offset, key, spare)
    return (rest > half) | ((rest == half) & odd & inexact)


def _by_chance(rest: Tensor, lost: Tensor, offset: int | Tensor, key: int, spare: int) -> Tensor:
    index = offset
    if not isinstance(index, Tensor):
        index = torch.arange(index, index + rest.numel(), device=rest.device).view(rest.shape)
    random = random_words(index, key)
    rest, lost = rest.to(torch.int64), lost.to(torch.int64)
    cut = (rest << (32 - lost).clamp(min=0)) >> (lost - 32).clamp(min=0, max=63)
    if spare:
        cut = (cut >> spare) + ((cut >> (spare - 1)) & 1)
        random = random >> spare
    return random < cut


def random_words(index: Tensor, key: int) -> Tensor:
    """The random bits of elements by their logical index (int64), as non-negative int64."""
    high, low = index >> 32, index & MASK32
    first, second = torch.empty_like(low), torch.empty_like(low)
    for upper in torch.unique(high).tolist() if index.numel() else []:
        one, two = words(key, upper)
        first = torch.where(high == upper, one, first)
        second = torch.where(high == upper, two, second)
    h = low ^ first
    h = ((h ^ (h >> 16)) * MULTIPLIERS[0]) & MASK32
    h = (h + second) & MASK32
    h = ((h ^ (h >> 15)) * MULTIPLIERS[1]) & MASK32
    return h ^ (h >> 15)


def _repaired(
    out: Tensor, r: Tensor, a: Tensor, negative: Tensor, g: Grid, counts: dict[str, Tensor]
) -> Tensor:
    """Overflow, infinity and NaN by the rules."""
    _, fraction, infinity = _shape(a)
    quiet = infinity | 1 << (fraction - 1)
    sign = torch.where(negative, torch.iinfo(a.dtype).min, 0).to(a.dtype)
    limit = torch.where(negative, g.lowest, g.largest).to(a.dtype)
    nan, infinite = a > infinity, a == infinity
    decided = negative if g.negative > 2 else torch.zeros_like(nan)  # by `_unsigned`
    beyond = (r > limit) & ~nan & ~infinite & ~decided
    inward = torch.where(negative, bool(g.inward & 2), bool(g.inward & 1))
    policy = torch.where(infinite, g.infinity, torch.where(inward, 0, g.overflow))
    outside = beyond | (infinite & ~decided)
    values = (limit | sign, infinity | sign, quiet | sign, quiet | sign)
    for number, value in enumerate(values):
        out = torch.where(outside & (policy == number), value, out)
    nan_value = (quiet | sign, g.largest, 0, torch.where(negative, 0, torch.iinfo(a.dtype).min), 0)
    out = torch.where(nan, nan_value[g.nan], out)
    counts |= {"overflowed": beyond, "infinite": infinite, "nan": nan}
    for number, name in ((0, "saturated"), (2, "became_nan"), (3, "raised")):
        counts[name] = outside & (policy == number)
    return out.to(a.dtype)


def _unsigned(
    out: Tensor, a: Tensor, negative: Tensor, g: Grid, counts: dict[str, Tensor]
) -> Tensor:
    """Formats without zero and sign: zeros, negatives and what rounded to zero."""
    _, fraction, infinity = _shape(a)
    quiet = infinity | 1 << (fraction - 1)
    magnitude = out & torch.iinfo(out.dtype).max
    is_zero = a == 0
    minus = negative & ~is_zero & (g.negative != 2)
    policy = torch.where(is_zero, g.zero, torch.where(minus, g.negative - 2, 0))
    policy = torch.where(a > infinity, -1, policy)
    result = torch.where((policy == 1) | (magnitude == 0), g.step, magnitude)
    result = torch.where(policy >= 2, quiet, result)
    counts["became_nan"] = counts["became_nan"] | (policy == 2)
    counts["raised"] = counts["raised"] | (policy == 3)
    return torch.where(policy < 0, out, result).to(a.dtype)
