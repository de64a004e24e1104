"""Optimizers by name, and the bookkeeping that a formula knows for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from floatscope.errors import LedgerError, unknown
from floatscope.memory.states import Policy, policy
from floatscope.recipes.catalogue import recipe as recipe_called

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


COVERED = ("fp32", "bf16-mixed", "fp16-mixed", "fp16-mixed-unscaled")
"""Recipes whose saved activations have a closed form: products as autocast makes them."""


def keeps_fp32(recipe: str) -> bool:
    """Whether weights, gradients and moments are fp32 between steps, as under autocast.

    Raises:
        RecipeError: no such recipe.
    """
    stored = getattr(recipe_called(recipe), "stored", None)
    return stored is None or stored == type(stored)()


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


def policy_of(optimizer: str, recipe: str) -> Policy | None:
    """Bytes a parameter of states.

    Returns:
        None where no formula says what is kept under the recipe or by the optimizer; then it has to
        be traced or measured.
    """
    if not keeps_fp32(recipe):
        return None
    base = policy("fp32" if recipe == "fp32" else "autocast")
    if OPTIMIZERS[optimizer][0] in ("AdamW", "Adam"):
        return base
    if optimizer == "sgd-momentum":
        return replace(base, second_moment=0, source="torch.optim.SGD: one moment")
    if optimizer == "sgd":
        return replace(base, first_moment=0, second_moment=0, source="torch.optim.SGD: no state")
    return None
