"""Native or emulated: who computes the 16-bit products.

The choice is made by what the device can do, may be overridden, and is always recorded.
"""

from __future__ import annotations

from typing import Literal

import torch

from floatscope.errors import RecipeError
from floatscope.recipes.recipe import ProductFormat, Recipe, check_backend

Backend = Literal["native", "emulated"]

DTYPES: dict[ProductFormat, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def has_units(products: ProductFormat, device: torch.device) -> bool:
    """Whether `device` multiplies matrices of this format at full speed."""
    if products == "fp32":
        return True
    if device.type == "cpu":
        # oneDNN's own answer: AVX512_FP16 or AMX for fp16, AVX512 or AMX for bf16, and their
        # counterparts on Arm. Without it Torch falls back to loops some twenty times slower.
        if products == "fp16":
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if device.type == "cuda" and products == "bf16":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return True


def choose_backend(recipe: Recipe, device: torch.device, requested: str = "auto") -> Backend:
    """The backend for `recipe` on `device`.

    Args:
        recipe: what is to be computed.
        device: where.
        requested: "auto" lets the device decide; "native" and "emulated" insist.

    Returns:
        "native", always, for a recipe whose products are fp32.

    Raises:
        RecipeError: unknown request, or emulation asked for on a device other than the CPU.
    """
    check_backend(requested)
    if recipe.products == "fp32":
        return "native"
    if requested == "auto":
        requested = "native" if has_units(recipe.products, device) else "emulated"
    if requested == "native":
        return "native"
    if device.type != "cpu":
        raise RecipeError(
            f"the emulated backend computes on the CPU, not on {device.type}; choose the native "
            "one."
        )
    return "emulated"
