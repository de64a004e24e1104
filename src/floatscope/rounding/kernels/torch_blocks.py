"""Block formats with Torch operations: the scales of `numba_blocks.py` on any device.

Every step is one that the CPU kernel does, in fp32 and in the same order, so the results are the
same bits. Divisions are between tensors: with a plain number Torch multiplies by a reciprocal on
some devices and in `number / tensor` on all, which rounds twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope.formats import BlockFormat, ScaleRule
from floatscope.formats.values import octave_of
from floatscope.rounding.cast import cast_to
from floatscope.rounding.grid import grid_values
from floatscope.rounding.kernels.torch_elements import round_bits
from floatscope.rounding.reference_blocks import top_fraction_bits

FP32_MAX = torch.finfo(torch.float32).max


def tensor_encode(amax: Tensor, form: BlockFormat) -> Tensor:
    """NVFP4's factor of the whole tensor, from its largest finite magnitude."""
    top = torch.full_like(amax, float(form.scale.max * form.element.max))
    factor = (top / amax).clamp(max=FP32_MAX)
    return torch.where((amax == 0) | (factor == 0), torch.ones_like(amax), factor)


def scaling(amax: Tensor, form: BlockFormat, encode: Tensor | None) -> tuple[Tensor, ...]:
    """(encode, scale, stored scale) for each block's largest magnitude (fp32)."""
    one, largest = torch.ones_like(amax), torch.full_like(amax, float(form.element.max))
    finite = amax.isfinite()
    match form.rule:
        case ScaleRule.AMAX:
            factor = (largest / amax).clamp(max=FP32_MAX)
            factor = torch.where(finite & (amax != 0), factor, one)
            return factor, one / factor, one / factor
        case ScaleRule.AMAX_DIVIDE:
            scale = amax / largest
            scale = torch.where(scale == 0, one, scale)
            scale = torch.where(finite, scale, torch.nan)
            return one, scale, scale
        case ScaleRule.NVFP4:
            assert encode is not None
            return _nvfp4(amax, form, encode, one / largest)
    exponent = _exponent(amax, form)
    nan = ~finite
    scale = torch.where(nan, torch.nan, _power_of_two(exponent))
    return torch.where(nan, torch.nan, _power_of_two(-exponent)), scale, scale


def _nvfp4(
    amax: Tensor, form: BlockFormat, encode: Tensor, one_by_largest: Tensor
) -> tuple[Tensor, ...]:
    wanted = amax * (encode * one_by_largest)
    cast = cast_to(form.scale, None, None, "saturate", None)
    stored, _ = round_bits(wanted, grid_values(cast.form, cast.rules, 32), 0, 0, 0)
    stored = torch.where(amax.isfinite(), stored, torch.nan)
    scale = stored * (torch.ones_like(encode) / encode)
    return (torch.ones_like(scale) / scale).clamp(max=FP32_MAX), scale, stored


def _exponent(amax: Tensor, form: BlockFormat) -> Tensor:
    """Exponent of the scale under the rules that give a power of two; amax finite."""
    top = octave_of(form.element.max)
    if form.rule is ScaleRule.RCEIL:
        amax, top = (
            amax * (torch.ones_like(amax) / torch.full_like(amax, float(form.element.max))),
            0,
        )
    normal = amax.view(torch.int32) >= 1 << 23
    bits = torch.where(normal, amax, amax * 2.0**64).view(torch.int32)
    if form.rule is ScaleRule.EVEN:
        bits = bits + (1 << (22 - top_fraction_bits(form.element)))
    exponent = (bits >> 23) - 127 - torch.where(normal, 0, 64) - top
    if form.rule in (ScaleRule.CEIL, ScaleRule.RCEIL):
        exponent = exponent + ((bits & 0x7F_FFFF) != 0)
    return torch.where(amax == 0, -127, exponent).clamp(-127, 127)


def _power_of_two(exponent: Tensor) -> Tensor:
    bits = torch.where(exponent > -127, (exponent + 127) << 23, 1 << 22)
    return bits.to(torch.int32).view(torch.float32)
