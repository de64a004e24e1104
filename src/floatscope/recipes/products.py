"""Matrix products on 16-bit operands, computed as tensor cores compute them.

A 16-bit operand widens to fp32 exactly; a product of two 11-bit significands is exact in fp32; sums
run in fp32; the result is rounded to the 16-bit format once, at the end. That is what a tensor core
does (NVIDIA A100 whitepaper, "FP16 input, FP32 accumulate"), and what Torch's own 16-bit CPU
kernels do where they exist, so the two differ in the order of accumulation alone.

Attention. Fused attention on the CPU is one operation and becomes one product here: scores, softmax
and the weighted sum stay in fp32 inside and only the output is rounded; the log-sum-exp is fp32 as
it is natively. A CUDA flash kernel also rounds the probabilities to 16 bits before the second
product; this emulation does not. Materialized attention goes through `bmm` and rounds scores and
probabilities to 16 bits like any other tensor.

Each function takes the operation and its arguments as `__torch_dispatch__` receives them, below
autograd, and returns what the operation would: same shapes, same strides, same dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from floatscope.rounding.pages import fresh_like

aten = torch.ops.aten

ROWS = 1024

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any], torch.dtype], Any]


def widen(value: Any, dtype: torch.dtype) -> Any:
    """`value` in fp32 if it is a tensor of `dtype` (exact), else `value` itself.

    Large copies ask for huge pages: the first touch of others takes ten times as long as widening.
    """
    if not isinstance(value, Tensor) or value.dtype is not dtype:
        return value
    if value.is_contiguous():
        return fresh_like(value, torch.float32).copy_(value)
    if value.ndim > 1 and value.mT.is_contiguous():
        return widen(value.mT, dtype).mT
    return value.float()


def narrow(value: Any, dtype: torch.dtype) -> Any:
    """`value` rounded to `dtype`, to nearest even, if it is an fp32 tensor."""
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype is torch.float32 else value


def product(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """mm, bmm, addmm, baddbmm and their vector forms: widen, multiply, round once."""
    wide = op(*(widen(a, dtype) for a in args), **{k: widen(v, dtype) for k, v in kwargs.items()})
    return narrow(wide, dtype)


def matrix_product(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
) -> Tensor:
    """mm, the bulk of the work: by rows, so that the fp32 copies stay in the processor's cache.

    A tall left operand in row order is widened, multiplied and rounded `ROWS` rows at a time. No
    sum is split: each element of the result is a sum along the other dimension.
    """
    left, right = args
    num_rows = left.shape[0]
    is_tall = num_rows >= 2 * ROWS and left.stride(1) == 1
    if kwargs or not is_tall or left.dtype is not dtype or right.dtype is not dtype:
        return product(op, args, kwargs, dtype)
    result = left.new_empty(num_rows, right.shape[1])
    wide_right = right.float()
    for first in range(0, num_rows, ROWS):
        rows = slice(first, first + ROWS)
        result[rows] = torch.mm(left[rows].float(), wide_right)
    return result


def several(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """Operations with several outputs that are all results of products, such as gradients."""
    wide = op(*(widen(a, dtype) for a in args), **{k: widen(v, dtype) for k, v in kwargs.items()})
    return tuple(narrow(w, dtype) for w in wide)


def attention(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    """Fused CPU attention, forward: the output is rounded, the log-sum-exp stays fp32."""
    kwargs = {k: widen(v, dtype) for k, v in kwargs.items()}
    output, log_sum_exp = op(*(widen(a, dtype) for a in args), **kwargs)
    return narrow(output, dtype), log_sum_exp


HANDLERS: dict[Any, Handler] = {
    aten.mm.default: matrix_product,
    aten.bmm.default: product,
    aten.addmm.default: product,
    aten.baddbmm.default: product,
    aten.addbmm.default: product,
    aten.mv.default: product,
    aten.addmv.default: product,
    aten.dot.default: product,
    aten.vdot.default: product,
    aten.convolution.default: product,
    aten.convolution_backward.default: several,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: several,
}
