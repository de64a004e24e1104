"""Carry out a recipe's products on a model: autocast decides what is cast, a backend multiplies."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from floatscope.errors import RecipeError
from floatscope.recipes.backend import DTYPES, choose_backend
from floatscope.recipes.emulation import Emulation
from floatscope.recipes.quantized import Memory, QuantizedProducts, Report
from floatscope.recipes.recipe import Recipe
from floatscope.recipes.roles import Roles


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter; the CPU for a model without any."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@contextmanager
def compute(
    recipe: Recipe, model: nn.Module, backend: str = "auto", memory: Memory | None = None
) -> Iterator[Report | None]:
    """Inside it, calls of `model` compute as `recipe` says.

    Backward may run inside or outside. The model is not changed: on leaving, nothing remains of it
    but the autograd graph.

    Args:
        recipe: what to compute in which format.
        model: any module; its parameters are the weights.
        backend: "auto", "native" or "emulated", for 16-bit products.
        memory: what quantization remembers from step to step; by default each entry is a step.

    Yields:
        What was converted, if the recipe has operands of its own; it grows until backward is done.

    Raises:
        RecipeError: the model is compiled and the backend would be emulated (a compiled graph
            bypasses emulation), or the backend does not exist on the model's device.
    """
    device = device_of(model)
    operands = recipe.operands
    if recipe.products == "fp32" and (operands is None or operands.changes_nothing):
        yield None
        return
    dtype = DTYPES[recipe.products]
    is_native = choose_backend(recipe, device, backend) == "native"
    if is_native and operands is None:
        with torch.autocast(device.type, dtype=dtype):
            yield None
        return
    _refuse_compiled(model)
    quantized = None
    if operands is not None:
        roles = Roles(model, recipe.kept)
        quantized = QuantizedProducts(operands, roles, memory or _memory_of(model))
    emulation = Emulation(dtype, quantized, emulates=not is_native)
    # A custom autograd function may make the last node, which no torch function then returns.
    handle = model.register_forward_hook(lambda _module, _inputs, outputs: emulation.mark(outputs))
    cast = torch.autocast(device.type, dtype=dtype, enabled=recipe.products != "fp32")
    try:
        with emulation, cast:
            yield None if quantized is None else quantized.report
    finally:
        handle.remove()


_memories: weakref.WeakKeyDictionary[nn.Module, Memory] = weakref.WeakKeyDictionary()


def _memory_of(model: nn.Module) -> Memory:
    """What quantization remembers of a model between contexts; each is a step."""
    memory = _memories.setdefault(model, Memory())
    memory.step += 1
    return memory


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch._dynamo.OptimizedModule):
            raise RecipeError(
                f"{name or 'the model'} is compiled, and compiled code bypasses the emulated "
                "backend. Pass the module you compiled, or choose the native backend."
            )
