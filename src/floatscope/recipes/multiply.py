"""Multiply two quantized operands: accumulate, scale, add, round once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from floatscope.recipes.backend import has_units
from floatscope.recipes.products import ROWS
from floatscope.recipes.quantize import Quantized

SMALLEST = 16**3
"""Torch hands products of more multiplications than this to oneDNN."""


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
    scales = _scales(a, b)
    if a.block_scales is not None or b.block_scales is not None:
        result = _by_blocks(a, b, accumulator)
    else:
        is_scalar = added is None and len(scales) == 1 and not scales[0].ndim
        if is_scalar and accumulator == "fp32" and _can_scale(a.values, b.values, dtype):
            return _scaled_by_units(a.values, b.values, float(scales[0]))
        result = _accumulated(a.values, b.values, accumulator)
    for scale in scales:
        result *= scale
    if added is not None:
        tensor, beta, alpha = added
        result = result if alpha == 1 else result.mul_(alpha)
        if beta:
            result += tensor if beta == 1 else beta * tensor.float()
    return result.to(dtype)


def _scales(a: Quantized, b: Quantized) -> list[Tensor]:
    """What the accumulated result is multiplied by; two scales of tensors make one, in fp32."""
    scales = [scale for scale in (a.scale, b.scale) if scale is not None]
    if len(scales) == 2 and not scales[0].ndim and not scales[1].ndim:
        return [scales[0] * scales[1]]
    return scales


def _is_plain(a: Quantized, b: Quantized, accumulator: str, dtype: torch.dtype) -> bool:
    """Whether Torch's own product is all there is to do: fp32, or the processor's bf16 units."""
    scales = (a.scale, b.scale, a.block_scales, b.block_scales)
    if accumulator != "fp32" or any(scale is not None for scale in scales):
        return False
    if not a.values.dtype == b.values.dtype == dtype:
        return False
    return dtype is torch.float32 or has_units("bf16", a.values.device)


def _can_scale(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    """Whether the processor's bf16 units multiply these, and scale before they round."""
    if not a.dtype == b.dtype == dtype == torch.bfloat16 or a.device.type != "cpu":
        return False
    is_large = a.numel() * b.shape[-1] > a.shape[:-2].numel() * SMALLEST
    return is_large and has_units("bf16", a.device)


def _scaled_by_units(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """`scale * (a @ b)`: what oneDNN multiplies by alpha is the fp32 sum, before it is rounded."""
    product = torch.addmm if a.ndim == 2 else torch.baddbmm
    nothing = a.new_zeros(()).expand(*a.shape[:-1], b.shape[-1])
    return product(nothing, a, b, beta=0, alpha=scale)


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
    width = math.gcd(*(q.block[1] for q in (a, b) if q.block is not None))
    size = a.values.shape[-1]
    result: Tensor | None = None
    for start in range(0, max(size, 1), width):
        part = slice(start, min(start + width, size))
        partial = _accumulated(a.values[..., part], b.values[..., part, :], accumulator)
        if a.block_scales is not None:
            partial *= _per_row(a, a.block_scales, start, a.values.shape[-2])
        if b.block_scales is not None:
            scales = b.block_scales.transpose(-1, -2)
            partial *= _per_row(b, scales, start, b.values.shape[-1]).transpose(-1, -2)
        result = partial if result is None else result.add_(partial)
    assert result is not None
    return result


def _per_row(operand: Quantized, scales: Tensor, start: int, rows: int) -> Tensor:
    """The scales of the blocks that hold column `start`, one for each row: (..., rows, 1)."""
    assert operand.block is not None
    height, width = operand.block
    column = scales[..., start // width : start // width + 1]
    return column.repeat_interleave(height, -2)[..., :rows, :] if height > 1 else column
