"""Products of fp8 operands on a CUDA device's own units, by `torch._scaled_mm`.

NEVER RUN ON A DEVICE. Layouts, shapes and dtypes are held to Torch's own checks on tensors without
data, and the arithmetic around the call to a stand-in for it on the CPU (tests/test_native_fp8.py);
what a device computes has not been seen. On the CPU `torch._scaled_mm` is never called: there it
has been seen to hang.

Only the product is the device's. Operands are quantized by the same kernels as in emulation, so
they are the same to the bit, and their elements go over to Torch's fp8 dtypes without rounding. The
sum is the device's: its order, and on Hopper and Ada fewer bits between promotions to fp32
(`use_fast_accum=False` asks for them), where emulation sums in fp32.

What the units do not take is left to emulation, product by product, and said in the report.

    M, N, K = rows and columns of the result, and what is contracted
    (M, K) row-major @ (K, N) column-major, K and N multiples of 16: zeros are added and cut off
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from floatscope.errors import RecipeError
from floatscope.formats import BlockFormat
from floatscope.recipes.backend import choose_backend
from floatscope.recipes.formats_of import PRODUCTS_OF, Operand, Operands

if TYPE_CHECKING:
    from floatscope.recipes.quantize import Quantized
    from floatscope.recipes.recipe import Recipe

MULTIPLE = 16
"""Of K and N, as `torch._scaled_mm` checks."""
CAPABILITY = (8, 9)
"""The first devices with fp8 units: Ada; then Hopper, 9.0."""
ELEMENTS = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
Added = tuple[Tensor, float, float]
"""(tensor, beta, alpha) of `beta * tensor + alpha * (a @ b)`."""


def why_no_units(device: torch.device) -> str:
    """Why a device has no fp8 units that this Torch can use; empty if it has."""
    if device.type != "cuda":
        return f"fp8 units are CUDA devices', and this is {device.type}"
    if not hasattr(torch, "_scaled_mm"):
        return f"Torch {torch.__version__} has no torch._scaled_mm"
    if torch.version.cuda is None or not torch.cuda.is_available():
        return "Torch finds no CUDA device"
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        return f"the device has compute capability {found[0]}.{found[1]}, and fp8 units need 8.9"
    return ""


def why_not_taken(one: Operand, other: Operand, accumulator: str) -> str:
    """Why no fp8 unit multiplies operands of these formats; empty if one does."""
    if accumulator != "fp32":
        return f"the accumulator {accumulator} is computed bit by bit"
    granularities = set()
    for operand in (one, other):
        form = operand.form
        element = form.element.name if isinstance(form, BlockFormat) else form.name
        if element not in ELEMENTS:
            return f"{element} is no fp8 format"
        if not isinstance(form, BlockFormat) or form.block not in ("tensor", "row"):
            return f"{form.name} has not one scale a tensor or a row"
        granularities.add((form.block, element))
    if len({block for block, _ in granularities}) > 1:
        return "one operand has a scale a tensor, the other a scale a row"
    if all(element == "e5m2" for _, element in granularities):
        return "no unit multiplies e5m2 by e5m2"
    if ("row", "e5m2") in granularities:
        return "scales a row are for e4m3fn alone"
    return ""


def takes_any(operands: Operands | None) -> bool:
    """Whether fp8 units multiply for one of the three products at least."""
    return operands is not None and any(
        not why_not_taken(operands.of(product, one), operands.of(product, other),
                          operands.accumulator)
        for product, (one, other) in PRODUCTS_OF.items()
    )  # fmt: skip


def uses_units(recipe: Recipe, device: torch.device, requested: str = "auto") -> bool:
    """Whether products of `recipe` go to fp8 units on `device`.

    Args:
        recipe: what is to be computed.
        device: where.
        requested: "auto" lets the device decide; "native" insists, but on the CPU, where it speaks
            of 16-bit products: no CPU has others.

    Raises:
        RecipeError: native was asked for on another device, and it has no such units.
    """
    if not takes_any(recipe.operands):
        return False
    why = why_no_units(device)
    if why and requested == "native" and device.type != "cpu":
        raise RecipeError(
            f"{recipe.name} cannot multiply in fp8 natively: {why}. Choose the backend auto, which "
            "emulates its operands."
        )
    return not why


def backend_in_words(recipe: Recipe, device: torch.device, requested: str = "auto") -> str:
    """Who computes, for the record: of 16-bit products and, off the CPU, of operands.

    "native" or "emulated" on the CPU, where operands of their own are always emulated; elsewhere,
    for recipes that have such operands, such as "native, operands emulated".

    Raises:
        RecipeError: see `choose_backend` and `uses_units`.
    """
    chosen = choose_backend(recipe, device, requested)
    if device.type == "cpu" or recipe.operands is None or recipe.operands.changes_nothing:
        return chosen
    by_units = uses_units(recipe, device, requested)
    return f"{chosen}, operands {'native' if by_units else 'emulated'}"


def why_left(
    a: Quantized,
    b: Quantized,
    formats: tuple[Operand, Operand],
    accumulator: str,
    dtype: torch.dtype,
    added: Added | None,
) -> str:
    """Why a product is left to emulation; empty if `multiply_by_units` takes it.

    The arguments are those of `multiply_by_units`.
    """
    why = why_not_taken(*formats, accumulator)
    if why:
        return why
    if a.values.ndim != 2 or b.values.ndim != 2:
        return "matrices stacked in a batch"
    if not a.values.numel() or not b.values.numel():
        return "nothing to multiply"
    if _is_by_rows(formats) and dtype is not torch.bfloat16:
        return f"scales a row give bf16 alone, not {str(dtype).removeprefix('torch.')}"
    if _is_by_rows(formats) and added is not None and not _is_bias(added, dtype):
        return "with scales a row nothing but a bias is added before the one rounding"
    return ""


def multiply_by_units(
    a: Quantized,
    b: Quantized,
    formats: tuple[Operand, Operand],
    dtype: torch.dtype,
    added: Added | None = None,
) -> Tensor:
    """`beta * tensor + alpha * (a @ b)`, rounded to `dtype` once, as `multiply` has it.

    Args:
        a: (M, K), elements of its format and a scale: none or one a row, (M, 1).
        b: (K, N), likewise; of rows (1, N).
        formats: of a and of b.
        dtype: of the result, (M, N).
        added: what is added, or None.
    """
    num_columns = b.values.shape[1]
    left = _elements(_widened(a.values, 1), formats[0])
    right_t = _elements(_widened(_widened(b.values.mT, 1), 0), formats[1])
    scale_a, scale_b = _scale(a), _scale(b)
    if _is_by_rows(formats):
        scale_b = _widened(scale_b, 1, value=1.0)
    bias, out_dtype = None, dtype
    if added is not None and _is_bias(added, dtype):
        bias, added = _widened(added[0], 0), None
    elif added is not None:
        out_dtype = torch.float32
    result = _scaled_mm(left, right_t.mT, scale_a, scale_b, bias, out_dtype)
    if result.shape[1] != num_columns:
        cut = result.narrow(1, 0, num_columns)
        result = cut.clone(memory_format=torch.contiguous_format)
    if added is not None:
        tensor, beta, alpha = added
        result = result if alpha == 1 else result * alpha
        result = result + beta * tensor.float() if beta else result
    return result.to(dtype)


def _scaled_mm(
    left: Tensor,
    right: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Torch's own, in one place."""
    assert left.device.type == "cuda"  # on the CPU it may hang
    return torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
        left, right, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=dtype,
        use_fast_accum=False,
    )  # fmt: skip


def _is_by_rows(formats: tuple[Operand, Operand]) -> bool:
    form = formats[0].form
    return isinstance(form, BlockFormat) and form.block == "row"


def _is_bias(added: Added, dtype: torch.dtype) -> bool:
    """Whether the units add this themselves, in fp32 before they round."""
    tensor, beta, alpha = added
    is_narrow = tensor.dtype is dtype and dtype in (torch.bfloat16, torch.float16)
    return is_narrow and tensor.ndim == 1 and beta == alpha == 1


def _elements(values: Tensor, operand: Operand) -> Tensor:
    """The same values in Torch's own dtype for them, in row order."""
    form = operand.form
    assert isinstance(form, BlockFormat)
    return values.to(ELEMENTS[form.element.name], memory_format=torch.contiguous_format)


def _scale(operand: Quantized) -> Tensor:
    assert operand.scale is not None
    return operand.scale


def _widened(x: Tensor, dim: int, value: float = 0.0) -> Tensor:
    """With `value` up to the next multiple of 16 along `dim`."""
    missing = -x.shape[dim] % MULTIPLE
    if not missing:
        return x
    after_it = x.ndim - 1 - dim
    return F.pad(x, [0, 0] * after_it + [0, missing], value=value)
