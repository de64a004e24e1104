"""In which of the ways of `keeping.py` a recipe's weights are kept, and in which formats.

Without Torch, so that formulas can ask.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from floatscope.recipes.formats_of import Stored
from floatscope.recipes.recipe import Recipe

Way = Literal["as made", "16 bits", "masters", "storage"]


def way_of(recipe: Recipe, backend: str = "native") -> Way:
    """How weights are kept where a backend, "native" or "emulated", computes.

    Plain Torch keeps everything in 16 bits, or 16 bits with fp32 masters. Its scaler does not
    unscale gradients of 16 bits, so loss scaling needs masters.
    """
    stored, own = recipe.stored, recipe.products
    if stored == Stored():
        return "as made"
    if backend != "native" or own == "fp32" or recipe.operands is not None:
        return "storage"
    if stored == Stored(weights=own, master="fp32"):
        return "masters"
    everything = Stored(weights=own, moments=(own, own), gradients=own)
    return "16 bits" if stored == everything and recipe.loss_scaling is None else "storage"


class Formats(NamedTuple):
    """Dtypes in a training step, by short names."""

    products: str
    """Between products."""
    weights: str
    """Of parameters, their gradients and buffers."""
    optimizer: str
    """Of the parameters that the optimizer holds, masters or weights, and of its moments."""
    loss: str
    """Of the loss and its temporaries."""
    casts: bool
    """Whether products cast their operands, as autocast does."""


def formats_of(recipe: Recipe, backend: str = "native") -> Formats:
    """The dtypes that a recipe comes to."""
    way, narrow = way_of(recipe, backend), recipe.products
    if way in ("as made", "storage"):
        return Formats(narrow, "fp32", "fp32", "fp32", casts=narrow != "fp32")
    optimizer = "fp32" if way == "masters" else narrow
    # A scaled loss would overflow in fp16, so what the model returns is widened.
    loss = "fp32" if recipe.loss_scaling is not None else narrow
    return Formats(narrow, narrow, optimizer, loss, casts=False)
