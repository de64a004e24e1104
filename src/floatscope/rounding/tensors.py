"""`round_to`: tensors and arrays into a format, with every choice visible."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.formats import Format
from floatscope.rounding.anywhere import round_anywhere
from floatscope.rounding.cast import DTYPES, Cast, cast_to, check_holds, keyed
from floatscope.rounding.modes import Overflow, Rounding
from floatscope.rounding.on_cpu import round_cpu
from floatscope.rounding.outputs import can_write, check_plain, has_values, mark_changed, source_for
from floatscope.rounding.pages import fresh_like
from floatscope.rounding.random_bits import StochasticKey
from floatscope.rounding.receipt import COUNTS, NUM_COUNTS, Receipt
from floatscope.rounding.reference import RANDOM_BITS
from floatscope.rounding.rules import Rules

Array = TypeVar("Array", Tensor, NDArray[Any])
_NUMPY_DTYPES = (np.float16, np.float32, np.float64)


def round_to(
    x: Array,
    form: Format | str,
    rules: Rules | str | None = None,
    *,
    rounding: Rounding | None = None,
    overflow: Overflow | None = None,
    flush_subnormals: bool | None = None,
    out: Any = None,
    dtype: torch.dtype | None = None,
    key: StochasticKey | int | None = None,
    generator: torch.Generator | None = None,
    random_bits: int = RANDOM_BITS,
    receipt: Receipt | None = None,
    gradient: Format | str | None = None,
) -> Array:
    """Round every element of `x` to a float or integer format.

    Args:
        x: tensor of any floating dtype, shape, stride and device, or a NumPy array of float16,
            float32 or float64. fp64 is rounded once, not by way of fp32.
        form: the format or its name.
        rules: what happens at the edges, or its name ("standard", "torch-2.13", "ml_dtypes", ...).
            The standard's own by default: overflow gives infinity, else NaN, else the largest
            value; NaN stays NaN, and is an error in a format without.
        rounding: "nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd" or
            "stochastic"; wins over the rules, as do the next two. With a significand of one bit
            (e8m0) every tie goes up and "to-odd" truncates, because such a significand is odd.
        overflow: "saturate", "to_inf", "to_nan" or "raise": what a result beyond the largest value
            becomes, and an infinite input.
        flush_subnormals: whether subnormal results become zeros of their sign.
        out: where the result goes: same shape and device; may be `x`.
        dtype: dtype of the result; that of `out`, else of `x`, by default.
        key: of stochastic rounding, a `StochasticKey` or an integer of 64 bits (others modulo
            2^64). An element's random bits depend on the key and its row-major index alone.
        generator: draws the key if none is given; Torch's default generator otherwise.
        random_bits: 1 to 32 of them for an element.
        receipt: has the counts of this call added to it. On other devices than the CPU that waits
            for the device.
        gradient: format of the gradient on its way back, rounded to nearest by its standard rules;
            by default the gradient passes unchanged ("straight through").

    Returns:
        The rounded values, contiguous. A NaN has the sign of what it came from and no payload.

    Raises:
        FormatError: no floating input, choices that the format cannot express, a result dtype that
            cannot hold it, or elements for which the rules say "raise" (`out` is undefined then).
    """
    cast = cast_to(form, rules, rounding, overflow, flush_subnormals)
    cast = keyed(cast, key, generator, random_bits)
    if not isinstance(x, Tensor):
        return _round_array(x, cast, out, dtype, receipt)
    if x.requires_grad and torch.is_grad_enabled():
        if out is not None:
            raise FormatError("out= takes no part in autograd; detach the input, or leave it out.")
        back = cast_to(gradient, None, None, None, None) if gradient is not None else None
        return _StraightThrough.apply(x, cast, dtype, receipt, back)
    return round_tensor(x, cast, out, dtype, receipt)


def round_tensor(
    x: Tensor,
    cast: Cast,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
    receipt: Receipt | None = None,
) -> Tensor:
    """`round_to` once the choices are made, and outside autograd."""
    if x.dtype not in DTYPES or x.layout != torch.strided:
        raise FormatError(f"rounding takes dense floating-point tensors, not {_described(x)}.")
    check_plain(x, "round_to")
    dtype = dtype or (out.dtype if out is not None else x.dtype)
    check_holds(dtype, cast.form)
    if out is not None and (out.shape != x.shape or out.device != x.device or out.dtype != dtype):
        raise FormatError(f"out is {_described(out)}, and the result {tuple(x.shape)} of {dtype}.")
    source = source_for(x, out)
    whole = out is not None and can_write(out, "round_to")
    target = out if whole else fresh_like(source, dtype)
    assert target is not None
    if not has_values(x):
        counts = torch.empty(NUM_COUNTS, device="meta")
    elif x.device.type == "cpu":
        is_counted = receipt is not None
        counts = round_cpu(source, target, cast, is_fresh=not whole, is_counted=is_counted)
    else:
        counts = backend_of(x.device)(source, target, cast)
    if whole:
        mark_changed(target)
    settle(cast, x.numel(), counts, receipt)
    if out is not None and not whole:
        return out.copy_(target)
    return target


def backend_of(device: torch.device) -> Callable[[Tensor, Tensor, Cast], Any]:
    """What rounds the tensors of a device: takes input, result and cast, and returns the counts."""
    if device.type == "cpu":
        return round_cpu
    if device.type == "cuda" and find_spec("triton"):
        # Only with CUDA: tests run this kernel in Triton's interpreter, and never on a device.
        from floatscope.rounding.kernels.triton_elements import round_triton

        return round_triton
    return round_anywhere


def settle(cast: Cast, elements: int, counts: Any, receipt: Receipt | None) -> None:
    """Write the receipt, and raise if the rules say so of what was counted."""
    if (receipt is None and not cast.can_raise) or getattr(counts, "is_meta", False):
        return
    numbers = counts.tolist()
    if receipt is not None:
        receipt.add(elements, numbers)
    if not cast.can_raise:
        return
    found = dict(zip(COUNTS, numbers, strict=True))
    name = cast.form.name
    if cast.rules.nan == "raise" and found["nan"]:
        raise FormatError(
            f"{name} has no NaN, and {found['nan']} of {elements} elements are NaN. Rules say what "
            f'becomes of them, such as dataclasses.replace(fs.rules_for("{name}"), nan="zero").'
        )
    if found["raised"]:
        raise FormatError(
            f"{found['raised']} of {elements} elements overflow {name}, or are of a kind it does "
            'not hold. With overflow="saturate" they would become its largest value.'
        )


def _described(x: Tensor) -> str:
    return f"{tuple(x.shape)} of {x.dtype}, {x.layout}, on {x.device}"


def _round_array(
    x: NDArray[Any],
    cast: Cast,
    out: NDArray[Any] | None,
    dtype: torch.dtype | None,
    receipt: Receipt | None,
) -> NDArray[Any]:
    if not isinstance(x, np.ndarray) or x.dtype.newbyteorder("=") not in _NUMPY_DTYPES:
        what = x.dtype if isinstance(x, np.ndarray) else type(x).__name__
        raise FormatError(
            f"rounding takes Torch tensors and NumPy arrays of float16, float32 or float64, not "
            f"{what}."
        )
    source = torch.from_numpy(x if x.flags.writeable else x.copy()) if _is_plain(x) else None
    if source is None:
        source = torch.from_numpy(np.array(x, x.dtype.newbyteorder("="), order="C"))
    if out is None:
        return round_tensor(source, cast, None, dtype, receipt).numpy()
    if not _is_plain(out) or not out.flags.writeable:
        raise FormatError("out must be a writable NumPy array in this machine's byte order.")
    round_tensor(source, cast, torch.from_numpy(out), dtype, receipt)
    return out


def _is_plain(x: NDArray[Any]) -> bool:
    """Whether Torch can look at the array without a copy."""
    return x.dtype.isnative and all(stride >= 0 for stride in x.strides)


class _StraightThrough(torch.autograd.Function):
    """Rounds forward; the gradient passes unchanged, or rounded to a format of its own."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        cast: Cast,
        dtype: torch.dtype | None,
        receipt: Receipt | None,
        back: Cast | None,
    ) -> Tensor:
        ctx.back, ctx.dtype = back, x.dtype
        return round_tensor(x, cast, None, dtype, receipt)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        if ctx.back is not None:
            gradient = _StraightThrough.apply(gradient, ctx.back, None, None, None)
        return gradient.to(ctx.dtype), None, None, None, None
