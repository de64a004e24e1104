"""What the engine of recipes makes for itself, which a device with such units would not.

It computes 16-bit products in fp32 and quantizes operands into bf16 or fp32 tensors. Which of the
two an allocation is shows in the callers: the engine's modules are on the stack.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import torch
from torch import Tensor

from floatscope.recipes.recipe import Recipe

Engine = Callable[[Tensor], str]

COPIES = "fp32 copies of emulation"
QUANTIZED = "quantized"
"""How terms of quantized operands begin; "weight", "activation" or "gradient" follows."""

_ROOM = "floatscope.recipes."
_ENGINE = "floatscope.recipes.emulation"
_WIDENING = frozenset(f"floatscope.recipes.{name}" for name in ("products", "multiply", "roles"))
_QUANTIZING = "floatscope.recipes.quantized"
_DEEPEST = 32
_INSTRUMENTS = ("torch", "floatscope.memory")
"""Whose frames lie between a line of code and what it reads."""


def engine_of(recipe: Recipe, backend: str) -> Engine | None:
    """What tells the engine's own tensors from others; None where it does nothing."""
    if backend != "emulated" and recipe.operands is None:
        return None
    return partial(_made_as, widens=recipe.products != "fp32")


def _made_as(tensor: Tensor, *, widens: bool) -> str:
    """What the engine makes `tensor` as; empty for what a device would make too.

    Called while the tensor is being made.
    """
    is_wide = widens and tensor.dtype is torch.float32
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEEPEST):
        name = frame.f_globals.get("__name__") if frame is not None else _ENGINE
        if frame is None or name == _ENGINE:
            return ""
        if name in _WIDENING:
            return COPIES if is_wide else ""
        if name == _QUANTIZING and frame.f_code.co_name == "_made":
            return f"{QUANTIZED} {frame.f_locals['role']}"
        frame = frame.f_back
    return ""


def reads_for_engine() -> bool:
    """Whether it is a room of recipes whose code reads a number from a tensor now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if not any(f"{name}.".startswith(f"{room}.") for room in _INSTRUMENTS):
            return name.startswith(_ROOM)
        frame = frame.f_back
    return False
