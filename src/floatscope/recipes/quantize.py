"""From an operand as it comes to what is multiplied: values, and fp32 scales that are left over.

Scales that are powers of two, and NVFP4's e4m3 block scales, are folded into the values. What is
left is one scale a tensor or a row, which multiplies the accumulated result, or one a block, which
multiplies each block's partial sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from floatscope.formats import BlockFormat, FloatFormat
from floatscope.recipes.formats_of import Operand
from floatscope.rounding import Blocks, block_round, round_to
from floatscope.rounding.hadamard import Hadamard, turned

BF16_FRACTION = 7


@dataclass(frozen=True)
class Quantized:
    """An operand ready for a product; it may be in memory that the next product's will be in."""

    values: Tensor
    """In the shape of what was given; bf16 if that is exact, else fp32."""
    scale: Tensor | None = None
    """What the result is to be multiplied by: no dimensions, or one for each row (column)."""
    block_scales: Tensor | None = None
    """fp32 scales of blocks along the contracted dimension, in the layout of `block_round`."""
    block: tuple[int, int] | None = None


def quantize(
    x: Tensor,
    operand: Operand,
    axis: int,
    key: int = 0,
    amax: float | None = None,
    room: Tensor | None = None,
    transform: Hadamard | None = None,
    *,
    transposed: bool = False,
) -> Quantized:
    """Quantize one operand of a product.

    Args:
        x: a matrix, or matrices stacked along the first dimension.
        operand: how; a Hadamard transform is given by itself.
        axis: the dimension that the product contracts, -1 or -2.
        key: of stochastic rounding.
        amax: the magnitude that a per-tensor scale is made for, if not the tensor's own.
        room: flat memory of the dtype of `carrier_of(operand)` for as many elements, which the
            values may be in.
        transform: done along the contracted dimension before.
        transposed: count elements for stochastic rounding as those of the transpose; of a matrix
            in blocks.
    """
    form, chance = operand.form, key if operand.rounding == "stochastic" else None
    has_blocks = isinstance(form, BlockFormat) and amax is None
    if _is_transposed(x) and (chance is None or (has_blocks and x.ndim == 2)):
        other = quantize(
            x.mT, operand, -3 - axis, key, amax, room, transform, transposed=not transposed
        )
        return _transposed(other)
    carrier, out = carrier_of(operand), None if room is None else room.view(x.shape)
    if not x.numel():  # an expert without tokens
        return Quantized(x.to(carrier))
    if transform is not None and not has_blocks:
        x = turned(x, transform, axis)
    if not isinstance(form, BlockFormat):
        values = round_to(
            x.float(), form, rounding=operand.rounding, key=chance, out=out, dtype=carrier
        )
        return Quantized(values)
    if amax is not None:
        return _delayed(x, operand, form, amax, chance, out)
    blocks = block_round(
        x,
        form,
        axis=axis,
        block=operand.block,
        rule=operand.rule or None,
        rounding=operand.rounding,
        key=chance,
        out=out,
        dtype=carrier,
        apart=True,
        transform=transform,
        transposed=transposed,
    )
    return _of_blocks(blocks, form, operand)


def _of_blocks(blocks: Blocks, form: BlockFormat, operand: Operand) -> Quantized:
    """Rounded blocks, and the scales that were left out of their values."""
    if blocks.tensor_encode is not None:
        return Quantized(
            blocks.values, torch.ones_like(blocks.tensor_encode) / blocks.tensor_encode
        )
    if form.scale.fraction_bits == 0:
        return Quantized(blocks.values)
    if form.block == "tensor":
        return Quantized(blocks.values, blocks.scales.reshape(()))
    if form.block == "row":
        return Quantized(blocks.values, blocks.scales)
    shape = operand.block or form.block
    assert not isinstance(shape, str)
    return Quantized(blocks.values, None, blocks.scales, shape)


def _is_transposed(x: Tensor) -> bool:
    return x.ndim > 1 and not x.is_contiguous() and x.mT.is_contiguous()


def _transposed(q: Quantized) -> Quantized:
    scale = q.scale.mT if q.scale is not None and q.scale.ndim > 1 else q.scale
    blocks = q.block_scales.mT if q.block_scales is not None else None
    return Quantized(q.values.mT, scale, blocks, q.block)


def _delayed(
    x: Tensor,
    operand: Operand,
    form: BlockFormat,
    amax: float,
    key: int | None,
    out: Tensor | None,
) -> Quantized:
    """One scale a tensor, made for another magnitude than its own; what lies beyond saturates."""
    largest = torch.tensor(float(form.element.max) if amax else 1.0, device=x.device)
    factor = (largest / (amax or 1.0)).clamp(max=torch.finfo(torch.float32).max)
    elements = round_to(
        x.float() * factor, form.element, overflow="saturate", rounding=operand.rounding, key=key,
        out=out, dtype=carrier_of(operand),
    )  # fmt: skip
    return Quantized(elements, torch.ones_like(factor) / factor)


def carrier_of(operand: Operand) -> torch.dtype:
    """bf16 where it holds every value that is multiplied, else fp32."""
    form = operand.form
    element = form.element if isinstance(form, BlockFormat) else form
    bits = element.fraction_bits if isinstance(element, FloatFormat) else element.width - 1
    if isinstance(form, BlockFormat) and form.tensor_scale is not None:
        bits += form.scale.fraction_bits + 1  # elements times block scales
    wide = isinstance(element, FloatFormat) and element.exponent_bits > 8
    return torch.bfloat16 if bits <= BF16_FRACTION and not wide else torch.float32


def is_uneven(operand: Operand, shape: torch.Size) -> bool:
    """Whether blocks do not divide a matrix whose last dimension is contracted."""
    form = operand.form
    block = (operand.block or form.block) if isinstance(form, BlockFormat) else "tensor"
    return not isinstance(block, str) and any(n % b for n, b in zip(shape, block, strict=True))
