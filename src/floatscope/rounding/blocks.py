"""`block_round`: tensors into block formats, returning values and scales."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from floatscope.errors import FormatError, unknown
from floatscope.formats import BlockFormat, Format, ScaleRule
from floatscope.formats import format as format_called
from floatscope.rounding.block_layout import Layout, layout_of
from floatscope.rounding.blocks_anywhere import blocks_anywhere
from floatscope.rounding.blocks_on_cpu import blocks_on_cpu, can_count_columns, can_turn
from floatscope.rounding.cast import DTYPES, Cast, cast_to, keyed
from floatscope.rounding.hadamard import Hadamard, turned
from floatscope.rounding.modes import Rounding
from floatscope.rounding.on_cpu import NARROW
from floatscope.rounding.outputs import can_write, check_plain, has_values, mark_changed, source_for
from floatscope.rounding.pages import fresh_like
from floatscope.rounding.random_bits import StochasticKey
from floatscope.rounding.receipt import Receipt
from floatscope.rounding.reference import RANDOM_BITS
from floatscope.rounding.rules import standard
from floatscope.rounding.tensors import round_to

Tail = Literal["pad", "error"]


class Blocks(NamedTuple):
    """A tensor in a block format."""

    values: Tensor
    """The values, in the shape of the input."""
    scales: Tensor
    """The stored scale of each block (fp32): in place of each dimension that blocks cut, their
    number; values are multiples of it, times 1 / `tensor_encode` in NVFP4."""
    tensor_encode: Tensor | None
    """NVFP4's factor of the whole tensor, which elements are multiplied by; else None."""


def block_round(
    x: Tensor,
    form: BlockFormat | str,
    *,
    axis: int = -1,
    block: tuple[int, int] | None = None,
    rule: ScaleRule | str | None = None,
    rounding: Rounding = "nearest-even",
    tail: Tail = "pad",
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
    key: StochasticKey | int | None = None,
    generator: torch.Generator | None = None,
    random_bits: int = RANDOM_BITS,
    receipt: Receipt | None = None,
    gradient: Format | str | None = None,
    apart: bool = False,
    transform: Hadamard | None = None,
    transposed: bool = False,
) -> Blocks:
    """Round a tensor to a block format: each block by its own scale.

    A NaN in a block makes the whole block NaN, and so does an infinity, except under
    `ScaleRule.AMAX`, whose scale is 1 then. Elements beyond the largest saturate. Zeros keep their
    signs where the element format has a negative zero. Scales are computed in fp32, as the rules
    prescribe; with a scale that is no power of two, value = fl(element * scale).

    Args:
        x: tensor of any floating dtype, stride and device.
        form: the block format or its name.
        axis: the dimension along which a block's second number, or a row, runs: the one that a
            product contracts.
        block: another block shape than the format's.
        rule: another scale rule than the format's: "floor", "ceil", "even", "rceil", "amax",
            "amax-divide" or "nvfp4" (`ScaleRule` says what they do).
        rounding: of the elements.
        tail: "pad": a block at the edge may be smaller, as if zeros filled it; "error": refuse
            that.
        out: where the values go: same shape and device; may be `x`.
        dtype: of the values; that of `out`, else float32, or float64 for such input. A narrower
            one rounds once more, to nearest.
        key: of stochastic rounding; an element's index is its row-major one, with `axis` moved to
            the end unless it is one of the last two.
        generator: draws the key if none is given.
        random_bits: 1 to 32 for an element.
        receipt: has the counts of this call added to it: elements, saturated, NaN and flushed.
        gradient: format of the gradient on its way back; by default it passes unchanged.
        apart: leave fp32 scales out of the values, which then are elements, in NVFP4 times their
            block's e4m3 scale: what a product accumulates before it is scaled. Scales that are
            powers of two stay in.
        transform: done along `axis` before, in fp32: every `size` neighbors are turned, and a rest
            of fewer is left as it is (`hadamard.turned` has the order of the additions).
        transposed: count the elements of a matrix for stochastic rounding as those of its
            transpose, so that both become the same.

    Raises:
        FormatError: no floating input, unknown names, a shape that cannot be cut so.
    """
    form, cast = _choices(form, block, rule, rounding)
    cast = keyed(cast, key, generator, random_bits)
    if not isinstance(x, Tensor) or x.dtype not in DTYPES or x.layout != torch.strided:
        raise FormatError("block_round takes dense floating-point tensors.")
    check_plain(x, "block_round")
    if tail not in ("pad", "error"):
        raise FormatError(unknown("tail", tail, ("pad", "error")))
    if not (transform is None or isinstance(transform, Hadamard)):
        raise FormatError(f"transform is a Hadamard(size, seed), not {transform!r}.")
    if x.requires_grad and torch.is_grad_enabled():
        if out is not None:
            raise FormatError("out= takes no part in autograd; detach the input, or leave it out.")
        x = x if transform is None else turned(x, transform, axis)
        call = (form, cast, axis, tail, dtype, receipt, _How(apart, None, transposed), gradient)
        return Blocks(*_StraightThrough.apply(x, call))
    how = _How(apart, transform, transposed)
    return _round(x, form, cast, axis, tail, out, dtype, receipt, how)


class _How(NamedTuple):
    """What `block_round` was asked for besides."""

    apart: bool
    transform: Hadamard | None
    transposed: bool


@cache
def _choices(
    form: Format | str,
    block: tuple[int, int] | None,
    rule: ScaleRule | str | None,
    rounding: Rounding,
) -> tuple[BlockFormat, Cast]:
    """The block format, and the cast to its elements: still without a key."""
    form = format_called(form) if isinstance(form, str) else form
    if not isinstance(form, BlockFormat):
        raise FormatError(f"{form.name} has no blocks; use round_to.")
    if isinstance(rule, str):
        rules = {r.value: r for r in ScaleRule}
        if rule not in rules:
            raise FormatError(unknown("scale rule", rule, rules))
        rule = rules[rule]
    form = replace(form, block=block or form.block, rule=rule or form.rule)
    return form, cast_to(form.element, standard(form.element), rounding, "saturate", None)


def _round(
    x: Tensor,
    form: BlockFormat,
    cast: Cast,
    axis: int,
    tail: Tail,
    out: Tensor | None,
    dtype: torch.dtype | None,
    receipt: Receipt | None,
    how: _How,
) -> Blocks:
    dtype = dtype or (out.dtype if out is not None else None)
    dtype = dtype or (torch.float64 if x.dtype == torch.float64 else torch.float32)
    if dtype not in DTYPES or dtype.itemsize < 2:
        raise FormatError(f"values of block formats come in fp16 or wider, not {dtype}.")
    if out is not None and (out.shape != x.shape or out.device != x.device or out.dtype != dtype):
        raise FormatError(f"out must have shape {tuple(x.shape)} and dtype {dtype}, as the result.")
    if not -x.ndim <= axis < max(x.ndim, 1):
        raise FormatError(f"there is no axis {axis} in a tensor of {x.ndim} dimensions.")
    axis -= x.ndim if axis >= 0 else 0
    if form.block == "tensor":
        axis = -1
    if axis < -2:
        moved = x.movedim(axis, -1)
        result = _round(moved, form, cast, -1, tail, None, dtype, receipt, how)
        values, scales = result.values.movedim(-1, axis), result.scales.movedim(-1, axis)
        return Blocks(values if out is None else out.copy_(values), scales, result.tensor_encode)
    layout = layout_of(tuple(x.shape), form, columnwise=axis == -2)
    if tail == "error" and layout.has_tail:
        raise FormatError(
            f"blocks of {layout.height} x {layout.width} do not divide {tuple(x.shape)}; pad the "
            'tensor, or let tail="pad" leave smaller blocks at the edge.'
        )
    is_direct = _has_kernel(x, cast) and {x.dtype, dtype} <= NARROW
    if how.transposed and cast.rules.rounding == "stochastic":
        if x.ndim != 2:
            raise FormatError(f"only a matrix has a transpose, and the tensor is {tuple(x.shape)}.")
        if not (is_direct and can_count_columns(layout)):
            how = how._replace(transposed=False)
            result = _round(x.mT, form, cast, -3 - axis, tail, None, dtype, receipt, how)
            values = result.values.mT if out is None else out.copy_(result.values.mT)
            scales = result.scales.mT if result.scales.ndim else result.scales
            return Blocks(values, scales, result.tensor_encode)
    if how.transform and not (is_direct and axis == -2 and can_turn(layout, how.transform)):
        x, how = turned(x, how.transform, axis), how._replace(transform=None)
    if how.apart and form.scale.fraction_bits == 0:
        how = how._replace(apart=False)
    return _round_layout(source_for(x, out), form, cast, layout, out, dtype, receipt, how)


def _has_kernel(x: Tensor, cast: Cast) -> bool:
    """Whether the kernels of the CPU serve such a tensor."""
    is_narrow = x.dtype != torch.float64 and x.device.type == "cpu"
    return is_narrow and cast.rules.rounding in ("nearest-even", "stochastic") and x.numel() > 0


def _round_layout(
    x: Tensor,
    form: BlockFormat,
    cast: Cast,
    layout: Layout,
    out: Tensor | None,
    dtype: torch.dtype,
    receipt: Receipt | None,
    how: _How,
) -> Blocks:
    whole = out is not None and can_write(out, "block_round")
    target = out if whole else fresh_like(x, dtype)
    assert target is not None
    if _has_kernel(x, cast) and has_values(x):
        stored = np.empty(layout.scales_shape, np.float32)
        counts, encode = blocks_on_cpu(x, target, stored, form, cast, layout, receipt is None, *how)
        scales = torch.from_numpy(stored)
        tensor_encode = None if encode is None else torch.tensor(float(encode), device=x.device)
    else:
        scales = torch.empty(layout.scales_shape, dtype=torch.float32, device=x.device)
        counts, tensor_encode = blocks_anywhere(x, target, scales, form, cast, layout, how.apart)
    if whole:
        mark_changed(target)
    if receipt is not None and has_values(x):
        receipt.add(x.numel(), counts.tolist())
    if out is not None and not whole:
        out.copy_(target)
        target = out
    return Blocks(target, scales, tensor_encode)


class _StraightThrough(torch.autograd.Function):
    """Rounds forward; the gradient passes unchanged, or rounded to a format of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: tuple[Any, ...]) -> Any:
        form, cast, axis, tail, dtype, receipt, how, ctx.gradient = call
        ctx.axis, ctx.dtype = axis, x.dtype
        values, scales, encode = _round(x, form, cast, axis, tail, None, dtype, receipt, how)
        ctx.mark_non_differentiable(scales)
        return values, scales, encode

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient, form = gradients[0], ctx.gradient
        if form is not None:
            form = format_called(form) if isinstance(form, str) else form
            if isinstance(form, BlockFormat):
                gradient = block_round(gradient, form, axis=ctx.axis).values
            else:
                gradient = round_to(gradient, form)
        return gradient.to(ctx.dtype), None
