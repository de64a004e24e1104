"""Block formats on every device, in every mode, and for fp64: the Torch path."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from floatscope.formats import BlockFormat, ScaleRule
from floatscope.rounding.block_layout import Layout
from floatscope.rounding.cast import Cast, cast_to
from floatscope.rounding.grid import grid_values
from floatscope.rounding.kernels.torch_blocks import scaling, tensor_encode
from floatscope.rounding.kernels.torch_elements import round_bits
from floatscope.rounding.outputs import has_values
from floatscope.rounding.receipt import COUNTS, NUM_COUNTS

_BY_FP32_ARITHMETIC = (ScaleRule.AMAX, ScaleRule.AMAX_DIVIDE, ScaleRule.NVFP4)


def blocks_anywhere(
    x: Tensor,
    out: Tensor,
    scales: Tensor,
    form: BlockFormat,
    cast: Cast,
    layout: Layout,
    apart: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Round `x` into contiguous `out`; the counts, and NVFP4's factor of the whole tensor."""
    shape = (layout.matrices, layout.rows, layout.columns)
    if not has_values(x) or not x.numel():
        encode = torch.ones((), device=x.device) if form.rule is ScaleRule.NVFP4 else None
        return torch.zeros(NUM_COUNTS, dtype=torch.int64, device=x.device), encode
    work = _working_dtype(x.dtype, form, cast)
    values = x.to(work).reshape(shape)
    blocked = _blocked(values, layout)
    amax = _to_fp32(blocked.abs().amax((2, 4)))
    encode = None
    if form.rule is ScaleRule.NVFP4:
        finite = torch.where(values.isfinite(), values.abs(), 0).amax()
        encode = tensor_encode(_to_fp32(finite), form)
    factor, scale, stored = (t.to(work) for t in scaling(amax, form, encode))
    scales.copy_(stored.view(scales.shape))
    factor, scale = factor[:, :, None, :, None], scale[:, :, None, :, None]
    scaled = blocked / scale if form.rule is ScaleRule.AMAX_DIVIDE else blocked * factor
    index = _blocked(torch.arange(x.numel(), device=x.device).view(shape), layout)
    grid = grid_values(cast.form, cast.rules, 32 if work == torch.float32 else 64)
    elements, counts = round_bits(scaled.contiguous(), grid, index, cast.key, cast.spare)
    elements = torch.where(scaled.isnan(), torch.nan, elements)
    if apart:
        scale = stored[:, :, None, :, None] if form.tensor_scale else torch.ones_like(scale)
    result = _whole(elements * scale, layout)
    out.copy_(result.reshape(out.shape))
    saturated = counts[COUNTS.index("saturated")]
    return _counts(values, result, saturated), encode


def _working_dtype(dtype: torch.dtype, form: BlockFormat, cast: Cast) -> torch.dtype:
    """fp64 for fp64, and where scaling by a power of two must not lose what rounding looks at."""
    directed = cast.rules.rounding not in ("nearest-even", "nearest-away", "stochastic")
    exact = directed and form.rule not in _BY_FP32_ARITHMETIC
    return torch.float64 if dtype == torch.float64 or exact else torch.float32


def _to_fp32(amax: Tensor) -> Tensor:
    """Magnitudes to fp32; from fp64 to odd, which keeps their octave and whether they are even."""
    if amax.dtype == torch.float32:
        return amax
    cast = cast_to("fp32", None, "to-odd", None, None)
    rounded, _ = round_bits(amax.contiguous(), grid_values(cast.form, cast.rules, 64), 0, 0, 0)
    return rounded.float()


def _blocked(x: Tensor, layout: Layout) -> Tensor:
    """(matrices, strips, height, blocks, width), with zeros where blocks reach over the edge."""
    missing = (-layout.rows % layout.height, -layout.columns % layout.width)
    x = pad(x, (0, missing[1], 0, missing[0])) if any(missing) else x
    return x.view(-1, layout.strips, layout.height, layout.blocks, layout.width)


def _whole(x: Tensor, layout: Layout) -> Tensor:
    """What `_blocked` did, undone."""
    joined = x.reshape(-1, layout.strips * layout.height, layout.blocks * layout.width)
    return joined[:, : layout.rows, : layout.columns]


def _counts(x: Tensor, result: Tensor, saturated: Tensor) -> Tensor:
    """As the CPU kernels count: what saturated, is or became NaN, or became zero."""
    found = {
        "saturated": saturated,
        "nan": x.isnan().sum(),
        "became_nan": (result.isnan() & ~x.isnan()).sum(),
        "flushed": ((result == 0) & (x != 0)).sum(),
    }
    zero = torch.zeros((), dtype=torch.int64, device=x.device)
    return torch.stack([found.get(name, zero) for name in COUNTS])
