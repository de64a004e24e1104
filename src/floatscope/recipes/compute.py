"""Carry out a recipe's products on a model: autocast decides what is cast, a backend multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from floatscope.errors import RecipeError
from floatscope.recipes.backend import DTYPES, choose_backend
from floatscope.recipes.emulation import Emulation
from floatscope.recipes.recipe import Recipe


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter; the CPU for a model without any."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@contextmanager
def compute(recipe: Recipe, model: nn.Module, backend: str = "auto") -> Iterator[None]:
    """Inside it, calls of `model` compute as `recipe` says.

    Backward may run inside or outside. The model is not changed: on leaving, nothing remains of it
    but the autograd graph.

    Raises:
        RecipeError: the model is compiled and the backend would be emulated (a compiled graph
            bypasses emulation), or the backend does not exist on the model's device.
    """
    device = device_of(model)
    if recipe.products == "fp32":
        yield
        return
    dtype = DTYPES[recipe.products]
    if choose_backend(recipe, device, backend) == "native":
        with torch.autocast(device.type, dtype=dtype):
            yield
        return
    for name, module in model.named_modules():
        if isinstance(module, torch._dynamo.OptimizedModule):
            raise RecipeError(
                f"{name or 'the model'} is compiled, and compiled code bypasses the emulated "
                "backend. Pass the module you compiled, or choose the native backend."
            )
    emulation = Emulation(dtype)
    # A custom autograd function may make the last node, which no torch function then returns.
    handle = model.register_forward_hook(lambda _module, _inputs, outputs: emulation.mark(outputs))
    try:
        with emulation, torch.autocast(device.type, dtype=dtype):
            yield
    finally:
        handle.remove()
