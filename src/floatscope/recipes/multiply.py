"""Multiply two quantized operands: accumulate, scale, add, round once."""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope.recipes.backend import has_units
from floatscope.recipes.products import ROWS
from floatscope.recipes.quantize import Quantized


def multiply(
    a: Quantized,
    b: Quantized,
    accumulator: str,
    dtype: torch.dtype,
    added: tuple[Tensor, float, float] | None = None,
) -> Tensor:
    """`beta * tensor + alpha * (a @ b)`, rounded to `dtype` once.

    Args:
        a: (..., M, K), quantized along its last dimension.
        b: (..., K, N), quantized along its last but one.
        accumulator: how products add up.
        dtype: of the result.
        added: (tensor, beta, alpha), or None for a @ b alone.
    """
    if _is_plain(a, b, accumulator, dtype):
        if added is None:
            return torch.matmul(a.values, b.values)
        if dtype is torch.float32:
            tensor, beta, alpha = added
            product = torch.addmm if a.values.ndim == 2 else torch.baddbmm
            return product(tensor, a.values, b.values, beta=beta, alpha=alpha)
    if a.block_scales is not None or b.block_scales is not None:
        result = _by_blocks(a, b, accumulator)
    else:
        result = _accumulated(a.values, b.values, accumulator)
    for scale in (a.scale, b.scale):
        if scale is not None:
            result *= scale
    if added is not None:
        tensor, beta, alpha = added
        result = result if alpha == 1 else result.mul_(alpha)
        if beta:
            result += tensor if beta == 1 else beta * tensor.float()
    return result.to(dtype)


def _is_plain(a: Quantized, b: Quantized, accumulator: str, dtype: torch.dtype) -> bool:
    """Whether Torch's own product is all there is to do: fp32, or the processor's bf16 units."""
    scales = (a.scale, b.scale, a.block_scales, b.block_scales)
    if accumulator != "fp32" or any(scale is not None for scale in scales):
        return False
    if not a.values.dtype == b.values.dtype == dtype:
        return False
    return dtype is torch.float32 or has_units("bf16", a.values.device)


def _accumulated(a: Tensor, b: Tensor, accumulator: str) -> Tensor:
    """`a @ b` in fp32; rows at a time, so that widened copies stay in the cache."""
    if accumulator != "fp32":
        from floatscope.recipes.accumulate import accumulate

        return accumulate(a, b, accumulator)
    if a.ndim > 2 or a.dtype is torch.float32 or a.shape[0] < 2 * ROWS or a.stride(-1) != 1:
        return torch.matmul(a.float(), b.float())
    result = torch.empty(a.shape[0], b.shape[1], device=a.device)
    wide = b.float()
    for first in range(0, a.shape[0], ROWS):
        rows = slice(first, first + ROWS)
        torch.mm(a[rows].float(), wide, out=result[rows])
    return result


def _by_blocks(a: Quantized, b: Quantized, accumulator: str) -> Tensor:
    """The sum of the partial products of blocks along the contraction, each scaled in fp32."""
    width = max(q.block[1] for q in (a, b) if q.block is not None)
    result: Tensor | None = None
    for start in range(0, a.values.shape[-1], width):
        part = slice(start, start + width)
        partial = _accumulated(a.values[..., part], b.values[..., part, :], accumulator)
        if a.block_scales is not None:
            partial *= _per_row(a.block_scales, start // width, a.block, a.values.shape[-2])
        if b.block_scales is not None:
            scales = b.block_scales.transpose(-1, -2)
            spread = _per_row(scales, start // width, b.block, b.values.shape[-1])
            partial *= spread.transpose(-1, -2)
        result = partial if result is None else result.add_(partial)
    assert result is not None
    return result


def _per_row(scales: Tensor, index: int, block: tuple[int, int] | None, rows: int) -> Tensor:
    """The scales of one block column, one for each row: (..., rows, 1)."""
    assert block is not None
    column = scales[..., index : index + 1]
    return column.repeat_interleave(block[0], -2)[..., :rows, :] if block[0] > 1 else column
