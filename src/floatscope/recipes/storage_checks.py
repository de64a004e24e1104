"""What storage refuses: parameters, gradients, optimizers and states that it cannot work with."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from floatscope.errors import FormatError, RecipeError
from floatscope.recipes.formats_of import Stored
from floatscope.recipes.optimizers import OneOrTogether, each_of
from floatscope.rounding.outputs import check_plain

NATIVE = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Dtypes of parameters that may hold the weights themselves, if the recipe stores that format."""


def check_optimizer(optimizer: OneOrTogether) -> None:
    """Refuse optimizers that cannot step without a closure.

    Raises:
        RecipeError: LBFGS, or any other whose `step` demands one.
    """
    for one in each_of(optimizer):
        closure = inspect.signature(one.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise RecipeError(
                f"{type(one).__name__} needs a closure and several losses a step; take another one."
            )


def check_parameter(parameter: Tensor, name: str, stored: Stored) -> None:
    """Refuse a parameter of the optimizer that cannot be stored as the recipe says.

    Raises:
        RecipeError: sparse, without data, a subclass that stands for other tensors, or of a dtype
            other than fp32 and the stored format's own bf16 or fp16.
    """
    if parameter.layout is not torch.strided:
        raise RecipeError(f"the parameter {name} is {parameter.layout}; storage takes dense ones.")
    if parameter.device.type == "meta":
        raise RecipeError(f"the parameter {name} is on the meta device and has no data.")
    if parameter.dtype is not torch.float32 and NATIVE.get(parameter.dtype) != stored.weights:
        own = [f" or {dtype}" for dtype, form in NATIVE.items() if form == stored.weights]
        raise RecipeError(
            f"the parameter {name} is {parameter.dtype}; weights stored in {stored.weights} are "
            f"kept in torch.float32{''.join(own)}. Convert the model with model.float()."
        )
    try:
        check_plain(parameter.data, "storage")
    except FormatError:
        raise RecipeError(
            f"the parameter {name} is a {type(parameter.data).__name__}, which storage cannot look "
            "into; take a model of plain tensors."
        ) from None


def check_apart(parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse parameters that begin at the same memory, since each is stored by itself.

    Raises:
        RecipeError: there are two.
    """
    seen: dict[tuple[torch.device, int], str] = {}
    for name, parameter in parameters:
        if parameter.numel():
            other = seen.setdefault((parameter.device, parameter.data_ptr()), name)
            if other != name:
                raise RecipeError(
                    f"{other} and {name} are two parameters in the same memory; tie them by giving "
                    "both modules one and the same parameter."
                )


def check_state(state: Any, own: dict[str, Any]) -> None:
    """Refuse a state that does not belong to the storage whose own state is `own`.

    Raises:
        RecipeError: no state, or one of another recipe, seed, rank, model or version.
    """
    if not isinstance(state, dict) or set(state) != set(own):
        raise RecipeError("this is no state of a Storage; take what its state_dict() returned.")
    for field in ("version", "stored", "seed", "rank"):
        if state[field] != own[field]:
            raise RecipeError(
                f"the state was written with {field} = {state[field]!r}, and here it is "
                f"{own[field]!r}."
            )
    for kind in ("masters", "rests", "states"):
        given, mine = state[kind], own[kind]
        if set(given) != set(mine):
            odd = ", ".join(sorted(set(given) ^ set(mine)))
            raise RecipeError(f"the {kind} of the state are of other parameters: {odd}.")
    for kind in ("masters", "rests"):
        for name, mine in own[kind].items():
            given = state[kind][name]
            if given.shape != mine.shape or given.dtype != mine.dtype:
                raise RecipeError(
                    f"the {kind} of the state have {tuple(given.shape)} of {given.dtype} for "
                    f"{name}, which is {tuple(mine.shape)} of {mine.dtype} here."
                )
