"""The named recipes."""

from __future__ import annotations

from floatscope.errors import RecipeError, unknown
from floatscope.recipes.recipe import LossScaling, Recipe

_MIXED = "Micikevicius et al. 2018, Mixed Precision Training (arXiv 1710.03740); torch.autocast"

CATALOGUE: dict[str, Recipe] = {
    r.name: r
    for r in (
        Recipe(
            name="fp32",
            products="fp32",
            summary="everything in fp32: the reference",
            source="IEEE 754-2019 binary32",
        ),
        Recipe(
            name="bf16-mixed",
            products="bf16",
            summary="matrix products in bf16, everything kept in fp32, no loss scaling",
            source="Kalamkar et al. 2019 (arXiv 1905.12322); torch.autocast",
        ),
        Recipe(
            name="fp16-mixed",
            products="fp16",
            loss_scaling=LossScaling(),
            summary="matrix products in fp16, everything kept in fp32, dynamic loss scaling",
            source=f"{_MIXED}; torch.amp.GradScaler",
        ),
        Recipe(
            name="fp16-mixed-unscaled",
            products="fp16",
            summary="fp16-mixed without loss scaling: every step is applied, whatever it holds",
            source=_MIXED,
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe called `name`, such as "bf16-mixed".

    Raises:
        RecipeError: no such recipe; the message offers the nearest name.
    """
    if name not in CATALOGUE:
        raise RecipeError(unknown("recipe", str(name), CATALOGUE))
    return CATALOGUE[name]


def recipe_for(precision: str, loss_scaling: bool | None = None) -> Recipe:
    """The recipe that `train.precision` and `train.loss_scaling` name in a study file.

    Args:
        precision: "fp32", "bf16" or "fp16".
        loss_scaling: for fp16 alone; None means on.

    Raises:
        RecipeError: unknown precision, or loss scaling asked for where no recipe has it.
    """
    names = {"fp32": "fp32", "bf16": "bf16-mixed", "fp16": "fp16-mixed"}
    if precision not in names:
        raise RecipeError(unknown("train.precision", precision, names))
    if precision == "fp16":
        return recipe("fp16-mixed-unscaled" if loss_scaling is False else "fp16-mixed")
    if loss_scaling:
        raise RecipeError(
            f'train.loss_scaling = true needs train.precision = "fp16"; {precision} has the range '
            "of fp32 and is not scaled. Remove the line or set it to false."
        )
    return recipe(names[precision])
