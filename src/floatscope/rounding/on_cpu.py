"""Casts on the CPU: the Numba kernels, over pieces of a tensor and several threads."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.rounding.cast import Cast
from floatscope.rounding.grid import grid_of
from floatscope.rounding.jobs import Region, Span
from floatscope.rounding.receipt import NUM_COUNTS
from floatscope.rounding.rules import Rules, ScalarFormat
from floatscope.rounding.threads import PIECE, Counts, share, spread

STREAM_BYTES = 8 << 20
"""Outputs from this size on are stored past the caches."""
SMALL_PIECE = 1 << 14
"""Elements converted at a time: Torch converts so few without threads of its own, which would not
survive a fork."""

BITS = {torch.float32: np.uint32, torch.float64: np.uint64, torch.bfloat16: np.uint16}
"""The unsigned integers that have the bits of values."""
_CODES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
NARROW = {torch.float32, torch.bfloat16}
"""Dtypes that the kernels of fp32 take as they are."""


def round_cpu(
    x: Tensor,
    out: Tensor,
    cast: Cast,
    offset: int = 0,
    *,
    is_fresh: bool = False,
    is_counted: bool = True,
) -> Counts:
    """Round contiguous `x` into contiguous `out` of the same shape, which may be `x`.

    Fresh memory is zeroed page by page as it is first touched, and so in the cache already. Unless
    `is_counted`, counts may be missing, except of what the rules raise for.

    Returns:
        The counts of `receipt.COUNTS`.
    """
    carrier, grid, is_power = _constants(cast.form, cast.rules, x.dtype)
    is_power = is_power and x.dtype == out.dtype == torch.float32
    is_direct = is_power or carrier == x.dtype == out.dtype
    if is_direct or (carrier is torch.float32 and {x.dtype, out.dtype} <= NARROW):
        job = _span(x, out, grid, cast, offset, is_counted or (is_power and cast.can_raise))
        job.stream = is_direct and not is_fresh and _can_stream(out)
        return share(_region(x.dtype, out.dtype, is_power), job)
    x, out = x.reshape(-1), out.view(-1)
    region = _region(carrier, carrier, False)

    def converted(start: int, stop: int, counts: Counts) -> None:
        given = x[start:stop].to(carrier)
        result = torch.empty_like(given)
        counts += share(region, _span(given, result, grid, cast, offset + start, is_counted))
        out[start:stop].copy_(result)

    return spread(converted, x.numel(), NUM_COUNTS, SMALL_PIECE)


def _span(
    x: Tensor, out: Tensor, grid: NDArray[np.uint64], cast: Cast, offset: int, counted: bool
) -> Span:
    """The job of rounding contiguous x into contiguous out."""
    given, target = x.data_ptr(), out.data_ptr()
    return Span(
        size=x.numel(), piece=PIECE, one=1, x=given, out=target, grid=address_of(grid),
        offset=offset, key=cast.key, spare=cast.spare, counted=counted, shared=given == target,
    )  # fmt: skip


@cache
def _region(given: torch.dtype, wanted: torch.dtype, is_power: bool) -> Region:
    from floatscope.rounding.kernels.numba_jobs import powers_region, span_region

    return powers_region() if is_power else span_region(BITS[given], BITS[wanted])


def encode_cpu(
    x: Tensor, codes: Tensor, cast: Cast, offset: int = 0, *, is_counted: bool = True
) -> Counts:
    """Write the codes of contiguous `x` to contiguous `codes` of an unsigned dtype."""
    from floatscope.rounding.kernels.numba_jobs import codes_region

    carrier, grid, _ = _constants(cast.form, cast.rules, x.dtype)
    region = codes_region(BITS[carrier], _CODES[codes.element_size()])
    if carrier == x.dtype:
        return share(region, _span(x, codes, grid, cast, offset, is_counted))
    x, codes = x.reshape(-1), codes.view(-1)

    def converted(start: int, stop: int, counts: Counts) -> None:
        given, part = x[start:stop].to(carrier), codes[start:stop]
        counts += share(region, _span(given, part, grid, cast, offset + start, is_counted))

    return spread(converted, x.numel(), NUM_COUNTS, SMALL_PIECE)


def _can_stream(out: Tensor) -> bool:
    return out.nbytes >= STREAM_BYTES and out.data_ptr() % 64 == 0


def address_of(numbers: NDArray[Any]) -> int:
    """Of the first number; the caller keeps the array alive."""
    return numbers.__array_interface__["data"][0]


@lru_cache(256)
def _constants(
    form: ScalarFormat, rules: Rules, dtype: torch.dtype
) -> tuple[torch.dtype, NDArray[np.uint64], bool]:
    """The carrier of inputs of `dtype`, its grid, and whether e8m0 has its kernel."""
    cast = Cast(form, rules)
    carrier = cast.carrier(dtype)
    return (
        carrier,
        grid_of(form, rules, 32 if carrier == torch.float32 else 64),
        cast.is_e8m0_to_nearest,
    )
