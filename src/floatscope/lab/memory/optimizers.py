"""Optimizers by name, and the bookkeeping that a formula knows for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from floatscope.errors import LedgerError, unknown
from floatscope.memory.kept import way_of
from floatscope.memory.states import Policy, policy_for
from floatscope.recipes.catalogue import recipe as recipe_called
from floatscope.recipes.recipe import Recipe

# Name, class in torch.optim, options. Where nothing is said, one tensor at a time.
_TABLE: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("adamw", "AdamW", {"foreach": False}),
    ("adamw-foreach", "AdamW", {"foreach": True}),
    ("adamw-fused", "AdamW", {"fused": True}),
    ("adam", "Adam", {"foreach": False}),
    ("sgd", "SGD", {"lr": 1e-3, "foreach": False}),
    ("sgd-momentum", "SGD", {"lr": 1e-3, "momentum": 0.9, "foreach": False}),
    ("rmsprop", "RMSprop", {"foreach": False}),
    ("adagrad", "Adagrad", {"foreach": False}),
    ("nadam", "NAdam", {"foreach": False}),
    ("adafactor", "Adafactor", {"foreach": False}),
)
OPTIMIZERS = {name: (kind, options) for name, kind, options in _TABLE}


def keeps_fp32(recipe: str) -> bool:
    """Whether weights, gradients and moments are fp32 between steps, as under autocast.

    Raises:
        RecipeError: no such recipe.
    """
    return way_of(recipe_called(recipe)) == "as made"


def optimizer_called(name: str) -> Callable[[nn.Module], Optimizer]:
    """Makes the optimizer called `name` over all parameters that require a gradient.

    Raises:
        LedgerError: no such optimizer; the message offers the nearest name.
    """
    if name not in OPTIMIZERS:
        raise LedgerError(unknown("optimizer", name, OPTIMIZERS))
    kind, options = OPTIMIZERS[name]
    return functools.partial(_make, kind, options)


def _make(kind: str, options: dict[str, object], model: nn.Module) -> Optimizer:
    trained = (p for p in model.parameters() if p.requires_grad)
    return getattr(torch.optim, kind)(trained, **options)


def policy_of(optimizer: str, recipe: str, backend: str = "native") -> Policy | None:
    """Bytes a parameter of states, as they are held here.

    Args:
        optimizer: its name.
        recipe: name of a recipe.
        backend: "native" or "emulated".

    Returns:
        None where no formula says what the optimizer keeps; then it has to be traced or measured.

    Raises:
        RecipeError: no such recipe.
    """
    known = recipe_called(recipe)
    is_stored = way_of(known, backend) == "storage"
    base = _in_storage(known, backend) if is_stored else policy_for(known)
    if OPTIMIZERS[optimizer][0] in ("AdamW", "Adam"):
        return base
    if optimizer == "sgd-momentum":
        return replace(base, second_moment=0, source="torch.optim.SGD: one moment")
    if optimizer == "sgd":
        return replace(base, first_moment=0, second_moment=0, source="torch.optim.SGD: no state")
    return None


def _in_storage(recipe: Recipe, backend: str) -> Policy:
    """What the laboratory's own step holds: fp32 tensors, natively weights of 16 bits."""
    stored = recipe.stored
    weights = 2 if backend == "native" and stored.weights in ("bf16", "fp16") else 4
    return Policy(
        name=f"{recipe.name} in storage", parameters=weights, gradients=4, first_moment=4,
        second_moment=4, master=4 if stored.master else 0,
        other=weights if stored.update == "kahan" else 0,
        source="floatscope's training step holds values of 16 bits in fp32 tensors",
    )  # fmt: skip
