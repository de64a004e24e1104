"""Casts on every device: the Torch path, piece by piece so that temporaries stay small."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from floatscope.rounding.cast import Cast
from floatscope.rounding.grid import Grid, grid_values
from floatscope.rounding.kernels.torch_codes import codes_of
from floatscope.rounding.kernels.torch_elements import round_bits
from floatscope.rounding.receipt import NUM_COUNTS

PIECE = 1 << 20
"""Elements at a time: integers of 64 bits for each are the largest temporaries."""


def round_anywhere(x: Tensor, out: Tensor, cast: Cast, offset: int = 0) -> Tensor:
    """Round `x` into contiguous `out`; the counts of `receipt.COUNTS`, on the device."""
    return _by_pieces(x, out, cast, offset, lambda rounded, grid: rounded)


def encode_anywhere(x: Tensor, codes: Tensor, cast: Cast, offset: int = 0) -> Tensor:
    """Write the codes of `x` to contiguous `codes`; returns the counts, on the device."""
    return _by_pieces(x, codes, cast, offset, codes_of)


def _by_pieces(
    x: Tensor, out: Tensor, cast: Cast, offset: int, made_of: Callable[[Tensor, Grid], Tensor]
) -> Tensor:
    """Round piece by piece, and write what is made of each to `out`."""
    carrier = cast.carrier(x.dtype)
    grid = grid_values(cast.form, cast.rules, 32 if carrier == torch.float32 else 64)
    x, out = x.reshape(-1), out.view(-1)
    total = torch.zeros(NUM_COUNTS, dtype=torch.int64, device=x.device)
    if x.is_meta:
        return total
    for start in range(0, x.numel(), PIECE):
        piece = x[start : start + PIECE].to(carrier)
        rounded, counts = round_bits(piece, grid, offset + start, cast.key, cast.spare)
        result = made_of(rounded, grid)
        out[start : start + PIECE].copy_(result.to(out.dtype))
        total += counts
    return total
