"""Codes with Torch operations: what `codes_of` of the CPU kernels does, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope.rounding.grid import Grid


def codes_of(values: Tensor, g: Grid) -> Tensor:
    """Codes (int64) of fp32 or fp64 values that the format holds."""
    single = values.dtype == torch.float32
    bits = values.view(torch.int32 if single else torch.int64)
    magnitude = (bits & torch.iinfo(bits.dtype).max).to(torch.int64)
    infinity = 0x7F80_0000 if single else 0x7FF0_0000_0000_0000
    shift = g.code_shift - (1 << 64) if g.code_shift >= 1 << 63 else g.code_shift
    normal = (magnitude >> g.drop) - shift
    anchor = torch.tensor([g.anchor], dtype=bits.dtype, device=bits.device)
    on_grid = (values.abs() + anchor.view(values.dtype)).view(bits.dtype) - anchor
    code = torch.where(magnitude < g.normal, on_grid.to(torch.int64), normal)
    negative = (bits < 0).to(torch.int64)
    if g.integer:
        return torch.where(negative == 1, -code, code) & ((1 << g.width) - 1)
    sign = negative << (g.width - 1)
    code = torch.where(magnitude == infinity, g.infinity_code | sign, code | sign)
    return torch.where(magnitude > infinity, g.nan_code | sign, code)
