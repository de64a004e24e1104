"""Why two quantizers to a block format differ on a block, as far as values tell.

Only values are known, not scales, so scales are tried: a result that is what rounding under some
scale gives is taken to have that scale. What no scale explains is looked at element by element,
under the scale of `block_round`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from floatscope.formats import BlockFormat
from floatscope.rounding.blocks import block_round
from floatscope.rounding.finder.causes import (
    between,
    code_of,
    differ,
    mark,
    power_of_two,
    scalar_kinds,
)
from floatscope.rounding.finder.probe_blocks import has_power_of_two_scales
from floatscope.rounding.tensors import round_to

CLOSE = 2.0**-21
"""Relative: what a few operations in fp32 may add to a number."""


def block_kinds(x: Tensor, a: Tensor, b: Tensor, raised: Tensor, form: BlockFormat) -> Tensor:
    """The class of every element that differs, by its place among `KINDS`; one for a block.

    Args:
        x: inputs in fp64, of two dimensions, or of three: tensors stacked along the first.
        a: results of one quantizer, in fp64.
        b: those of the other.
        raised: where one of them raised an error instead.
        form: the format.
    """
    if x.dim() == 2:
        return block_kinds(x[None], a[None], b[None], raised[None], form)[0]
    kinds = torch.zeros(x.shape, dtype=torch.int8)
    if not x.numel():
        return kinds
    each = [_blocks_of(*tensors, form) for tensors in zip(x, a, b, raised, strict=True)]
    every = _Blocks(*(torch.cat(parts) for parts in zip(*map(_fields, each), strict=True)))
    some = every.different.any(1)
    found = torch.full(some.shape, code_of("last bits"), dtype=torch.int8)
    found[some] = _kinds(_Blocks(*(field[some] for field in _fields(every))), form)
    return found.view(len(x), -1)[:, block_of_each(x[0], form)]


@dataclass(frozen=True)
class _Blocks:
    """Blocks of tensors: (blocks, elements), but scales (blocks, 1)."""

    x: Tensor
    a: Tensor
    b: Tensor
    ours: Tensor
    """What `block_round` gives."""
    different: Tensor
    """Where a and b differ in more than last bits."""
    raised: Tensor
    scales: Tensor
    """By `block_round`, with the tensor's part."""
    tensor_scales: Tensor
    """The tensor's part; 1 if it has none."""


def _differ_widely(a: Tensor, b: Tensor) -> Tensor:
    """Where tensors differ by more than what the order of fp32 products makes."""
    is_close = (a - b).abs() <= CLOSE * a.abs()
    return differ(a, b) & ~(is_close & (a != 0) & a.isfinite())


def _fields(blocks: _Blocks) -> tuple[Tensor, ...]:
    return tuple(vars(blocks).values())


def _blocks_of(x: Tensor, a: Tensor, b: Tensor, raised: Tensor, form: BlockFormat) -> _Blocks:
    ours, scales, tensor_scale = reference(x, form)
    return _Blocks(
        x=in_blocks(x, form),
        a=in_blocks(a, form),
        b=in_blocks(b, form),
        ours=in_blocks(ours, form),
        different=in_blocks(_differ_widely(a, b) | raised, form),
        raised=in_blocks(raised, form),
        scales=scales[:, None],
        tensor_scales=torch.full_like(scales, tensor_scale)[:, None],
    )


def _kinds(blocks: _Blocks, form: BlockFormat) -> Tensor:
    """The class of every block, all of which differ in more than last bits.

    A block of zeros and one that a quantizer flushed can look like one with a larger scale; then
    the other blocks decide.
    """
    kinds, is_element, is_far = _element_kinds(blocks, form)
    same, other = _explained(blocks, form)
    both = is_element & other
    by_scale = other & ~both | is_far & ~is_element
    mark(kinds, "block scale", by_scale | both & (by_scale.sum() > (is_element & ~both).sum()))
    mark(kinds, "division", same)
    zeros = (blocks.a == 0) & (blocks.b == 0)
    mark(kinds, "sign of zero", (zeros | ~blocks.different).all(1))
    mark(kinds, "raises", blocks.raised.any(1))
    mark(kinds, "infinity", blocks.x.isinf().any(1))
    mark(kinds, "nan", blocks.x.isnan().any(1))
    return kinds


def _element_kinds(blocks: _Blocks, form: BlockFormat) -> tuple[Tensor, Tensor, Tensor]:
    """The class of every block, were elements the cause; whether it seems so, and cannot be so.

    The class is that of the first element that differs. It seems so if every difference is a tie,
    or a subnormal value that one of the two flushes. It cannot be so if a result is no element
    times the scale, or not next to the input.
    """
    different, scales = blocks.different, blocks.scales
    scaled, by_a, by_b = (t / scales for t in (blocks.x, blocks.a, blocks.b))
    kinds = scalar_kinds(scaled, by_a, by_b, torch.zeros_like(different), form.element)
    flushed = (kinds == code_of("subnormal")) & ((by_a == 0) ^ (by_b == 0)) & (scaled != 0)
    certain = (~different | flushed | (kinds == code_of("tie"))).all(1)
    unit = between(scaled.nan_to_num(0, 0, 0), form.element).unit
    largest = float(form.element.max)
    far = torch.zeros_like(different)
    for result, quotient in ((blocks.a, by_a), (blocks.b, by_b)):
        is_next = (quotient - scaled).abs() < unit * (1 - CLOSE)
        is_cut = (quotient.abs() >= largest * (1 - CLOSE)) | ~quotient.isfinite()
        is_fit = torch.where(scaled.abs() > largest, is_cut, is_next)
        far |= ~is_fit & ~(flushed & (result == 0))
        on_grid = ~_differ_widely(_product(_element(quotient, form), scales), result)
        far |= torch.where(result.isfinite(), ~on_grid, scaled.abs() <= largest)
    first = different.int().argmax(1, keepdim=True)
    return kinds.gather(1, first)[:, 0], certain, (different & far).any(1)


def _explained(blocks: _Blocks, form: BlockFormat) -> tuple[Tensor, Tensor]:
    """By block: whether one scale explains both results, and whether two scales do."""
    x, a, b = blocks.x, blocks.a, blocks.b
    same, a_by_any, b_by_any = (torch.zeros(len(x), dtype=torch.bool) for _ in range(3))
    for i, scale in enumerate(_candidates(blocks, form)):
        ways = [x / scale, x * (1 / scale).float().double()]
        results = [_product(_element(way, form), scale) for way in ways]
        results += [blocks.ours] if i == 0 else []
        by_a, by_b = (
            torch.stack([~_differ_widely(r, t).any(1) for r in results]).any(0) for t in (a, b)
        )
        same |= by_a & by_b
        a_by_any |= by_a
        b_by_any |= by_b
    same &= (a.isfinite() & b.isfinite()).all(1)
    return same, a_by_any & b_by_any & ~same


def _candidates(blocks: _Blocks, form: BlockFormat) -> Iterator[Tensor]:
    """The scales of `block_round`, then those that another rule might have chosen."""
    scales, tensor_scales = blocks.scales, blocks.tensor_scales
    yield scales
    if has_power_of_two_scales(form):
        others = [scales / 2, scales * 2]
    elif form.tensor_scale is not None:
        stored = round_to(scales / tensor_scales, form.scale, overflow="saturate")
        unit = between(stored, form.scale).unit
        others = [(stored + k * unit).clamp(min=0) * tensor_scales for k in (-2, -1, 1, 2)]
        others += [float(form.scale.smallest_normal) * tensor_scales]
    else:
        floor = power_of_two(torch.frexp(scales).exponent - 1)
        amax = blocks.x.abs().amax(1, keepdim=True)
        others = [amax / float(form.element.max), floor, 2 * floor]
    for other in others:
        single = other.float().double()
        yield torch.where(single == scales, torch.nan, single)


def _element(scaled: Tensor, form: BlockFormat) -> Tensor:
    """Quotients of fp32 arithmetic, rounded to elements."""
    finite = scaled.float().nan_to_num(0, torch.inf, -torch.inf)
    return round_to(finite, form.element, overflow="saturate", dtype=torch.float64)


def _product(elements: Tensor, scales: Tensor) -> Tensor:
    """Elements times scales as fp32 gives it; exact in fp64 before."""
    return (elements * scales).float().double()


def reference(x: Tensor, form: BlockFormat) -> tuple[Tensor, Tensor, float]:
    """What `block_round` gives, the scales of the blocks, and the tensor's part in them or 1."""
    rounded = block_round(x.float(), form)
    tensor_scale = torch.ones(())
    if rounded.tensor_encode is not None:
        tensor_scale = 1 / rounded.tensor_encode
    scales = (rounded.scales * tensor_scale).double().reshape(-1)
    return rounded.values.double(), scales, float(tensor_scale)


def _block_shape(x: Tensor, form: BlockFormat) -> tuple[int, int]:
    if isinstance(form.block, tuple):
        return form.block
    return (1, x.shape[1]) if form.block == "row" else (x.shape[0], x.shape[1])


def in_blocks(x: Tensor, form: BlockFormat) -> Tensor:
    """(blocks, elements), blocks that the tensor does not fill completed with zeros."""
    rows, columns = _block_shape(x, form)
    padded = pad(x, (0, -x.shape[1] % columns, 0, -x.shape[0] % rows))
    down, across = padded.shape[0] // rows, padded.shape[1] // columns
    parted = padded.view(down, rows, across, columns).transpose(1, 2)
    return parted.reshape(down * across, rows * columns)


def block_of_each(x: Tensor, form: BlockFormat) -> Tensor:
    """The number of every element's block."""
    rows, columns = _block_shape(x, form)
    across = -(-x.shape[1] // columns)
    down = torch.arange(x.shape[0])[:, None] // rows
    return down * across + torch.arange(x.shape[1]) // columns
