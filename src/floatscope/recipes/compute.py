"""Carry out a recipe's products on a model: autocast decides what is cast, a backend multiplies."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from floatscope.errors import RecipeError
from floatscope.recipes.backend import DTYPES, choose_backend
from floatscope.recipes.emulation import Emulation, Executor
from floatscope.recipes.native_fp8 import uses_units
from floatscope.recipes.quantized import QuantizedProducts
from floatscope.recipes.recipe import Recipe
from floatscope.recipes.report import Memory, Report
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
        backend: "auto", "native" or "emulated", for 16-bit products and, on CUDA, for those of fp8.
        memory: what quantization remembers from step to step; by default each entry is a step.

    Yields:
        What was converted and what was left; it grows until backward is done. None where Torch's
        autocast, or nothing at all, is all there is to do.

    Raises:
        RecipeError: another recipe is being computed; a parameter has 16 bits where products are
            fp32; the model is compiled and the backend would be emulated (a compiled graph
            bypasses emulation); or the backend does not exist on the model's device, or has no
            fp8 units there.
    """
    _refuse_nested()
    device = device_of(model)
    operands = recipe.operands
    dtype = DTYPES[recipe.products]
    is_native = choose_backend(recipe, device, backend) == "native"
    if recipe.products == "fp32":
        _refuse_narrow(model)
    if is_native and (operands is None or operands.changes_nothing):
        with _autocast(device, dtype):
            yield None
        return
    _refuse_compiled(model)
    report, quantized = Report(), None
    if operands is not None:
        roles = Roles(model, recipe.kept)
        by_units = uses_units(recipe, device, backend)
        quantized = QuantizedProducts(
            operands, roles, memory or _memory_of(model), report, by_units=by_units
        )
    emulation = Emulation(dtype, report, quantized, emulates=not is_native)
    # A custom autograd function may make the last node, which no torch function then returns.
    handle = model.register_forward_hook(lambda _module, _inputs, outputs: emulation.mark(outputs))
    try:
        with emulation, _autocast(device, dtype):
            yield report
    finally:
        handle.remove()


@contextmanager
def _autocast(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Torch's autocast, or none of it for fp32, also inside of another one."""
    if not torch.amp.is_autocast_available(device.type):
        yield
        return
    is_inside = torch.is_autocast_enabled(device.type)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype is not torch.float32):
        # The outer one's casts of weights are of its dtype, and were made unseen.
        if is_inside:
            torch.clear_autocast_cache()
        yield
    if is_inside:
        torch.clear_autocast_cache()


_memories: weakref.WeakKeyDictionary[nn.Module, Memory] = weakref.WeakKeyDictionary()


def _memory_of(model: nn.Module) -> Memory:
    """What quantization remembers of a model between contexts; each is a step."""
    memory = _memories.setdefault(model, Memory())
    memory.step += 1
    return memory


def _refuse_nested() -> None:
    if any(isinstance(mode, Executor) for mode in _get_current_dispatch_mode_stack()):
        raise RecipeError(
            "a recipe is being computed already, and recipes do not nest. Leave its context first; "
            "backward may run after that."
        )


def _refuse_narrow(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16):
            raise RecipeError(
                f"the parameter {name} is {parameter.dtype}, and the recipe computes products in "
                "fp32. Convert the model with model.float()."
            )


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        compiled = isinstance(module, (torch._dynamo.OptimizedModule, torch.jit.ScriptModule))
        if compiled or module._compiled_call_impl is not None:
            raise RecipeError(
                f"{name or 'the model'} is compiled, and compiled code bypasses the emulated "
                "backend. Pass the module you compiled, or choose the native backend."
            )
