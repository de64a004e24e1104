"""Casts on the CPU: the Numba kernels, over pieces of a tensor and several threads."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.rounding.cast import Cast
from floatscope.rounding.grid import grid_of
from floatscope.rounding.receipt import NUM_COUNTS
from floatscope.rounding.rules import Rules, ScalarFormat
from floatscope.rounding.threads import PIECE, Counts, spread

STREAM_BYTES = 8 << 20
"""Outputs from this size on are stored past the caches."""
SMALL_PIECE = 1 << 14
"""Elements converted at a time: Torch converts so few without threads of its own, which would not
survive a fork."""

_NO_CHANCE = np.uint64(0), np.uint32(0)
_BITS = {torch.float32: np.uint32, torch.float64: np.uint64, torch.bfloat16: np.uint16}


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
    from floatscope.rounding.kernels.numba_elements import round_span

    carrier, grid, is_power = _constants(cast.form, cast.rules, x.dtype)
    if is_power and x.dtype == out.dtype == torch.float32:
        counted = is_counted or cast.can_raise
        return _powers(x, out, grid, not is_fresh, counted)
    key, spare = _random(cast)
    if carrier == x.dtype == out.dtype:
        source, target = bits_of(x).reshape(-1), bits_of(out).reshape(-1)
        stream, shared = not is_fresh and _can_stream(target), x.data_ptr() == out.data_ptr()

        def direct(start: int, stop: int, counts: Counts) -> None:
            given, result = piece_of(source, start, stop, shared), target[start:stop]
            at = np.uint64(offset + start)
            round_span(given, result, at, grid, key, spare, stream, counts, is_counted)

        return spread(direct, x.numel(), NUM_COUNTS)
    if carrier is torch.float32 and {x.dtype, out.dtype} <= {torch.float32, torch.bfloat16}:
        return _by_bf16(x, out, grid, offset, key, spare, is_counted)
    x, out = x.reshape(-1), out.view(-1)

    def converted(start: int, stop: int, counts: Counts) -> None:
        given = x[start:stop].to(carrier)
        result = torch.empty_like(given)
        at, source = np.uint64(offset + start), bits_of(given)
        round_span(source, bits_of(result), at, grid, key, spare, False, counts, is_counted)
        out[start:stop].copy_(result)

    return spread(converted, x.numel(), NUM_COUNTS, SMALL_PIECE)


def _by_bf16(
    x: Tensor,
    out: Tensor,
    grid: NDArray[np.uint64],
    offset: int,
    key: np.uint64,
    spare: np.uint32,
    is_counted: bool,
) -> Counts:
    """One of x and out is bf16, or both are."""
    from floatscope.rounding.kernels.numba_bf16 import SPANS

    spans = SPANS[x.dtype is torch.bfloat16, out.dtype is torch.bfloat16]
    source, target = bits_of(x).reshape(-1), bits_of(out).reshape(-1)

    def piece(start: int, stop: int, counts: Counts) -> None:
        at = np.uint64(offset + start)
        spans(source[start:stop], target[start:stop], at, grid, key, spare, counts, is_counted)

    return spread(piece, x.numel(), NUM_COUNTS)


def _powers(
    x: Tensor, out: Tensor, grid: NDArray[np.uint64], stream: bool, counted: bool
) -> Counts:
    from floatscope.rounding.kernels.numba_powers import round_powers

    source, target = bits_of(x).reshape(-1), bits_of(out).reshape(-1)
    shared = x.data_ptr() == out.data_ptr()
    stream = stream and _can_stream(target)

    def piece(start: int, stop: int, counts: Counts) -> None:
        given, result = piece_of(source, start, stop, shared), target[start:stop]
        round_powers(given, result, grid, counts, stream, counted)

    return spread(piece, x.numel(), NUM_COUNTS)


def encode_cpu(
    x: Tensor, codes: Tensor, cast: Cast, offset: int = 0, *, is_counted: bool = True
) -> Counts:
    """Write the codes of contiguous `x` to contiguous `codes` of an unsigned dtype."""
    from floatscope.rounding.kernels.numba_codes import encode_span

    carrier, grid, _ = _constants(cast.form, cast.rules, x.dtype)
    key, spare = _random(cast)
    x, target = x.reshape(-1), codes.view(-1).numpy()

    def piece(start: int, stop: int, counts: Counts) -> None:
        given, part = bits_of(x[start:stop].to(carrier)), target[start:stop]
        at = np.uint64(offset + start)
        encode_span(given, part, at, grid, key, spare, counts, is_counted)

    return spread(piece, x.numel(), NUM_COUNTS, PIECE if carrier == x.dtype else SMALL_PIECE)


def piece_of(source: NDArray[Any], start: int, stop: int, shared: bool) -> NDArray[Any]:
    """A piece to read from: a copy if results go to the same memory.

    A loop that might read what it has just written is no vector loop.
    """
    return source[start:stop].copy() if shared else source[start:stop]


def _can_stream(out: NDArray[Any]) -> bool:
    return out.nbytes >= STREAM_BYTES and out.ctypes.data % 64 == 0


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


def _random(cast: Cast) -> tuple[np.uint64, np.uint32]:
    """What the kernels ask of stochastic casts: the key, and how many random bits to leave."""
    return (np.uint64(cast.key), np.uint32(cast.spare)) if cast.key or cast.spare else _NO_CHANCE


def bits_of(x: Tensor) -> NDArray[np.unsignedinteger[Any]]:
    """The memory of a tensor of fp32, fp64 or bf16 as unsigned integers."""
    x = x.detach() if x.requires_grad else x
    return (x.view(torch.int16) if x.dtype is torch.bfloat16 else x).numpy().view(_BITS[x.dtype])
