"""What a training step refuses, said in the user's words before Torch says it in its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import LBFGS

from floatscope.errors import RecipeError
from floatscope.recipes.optimizers import OneOrTogether, each_of, held_by
from floatscope.recipes.recipe import Recipe
from floatscope.recipes.report import Report

NATIVE = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Formats of stored weights that parameters may have as their dtype."""


def check_trainable(
    model: nn.Module, optimizer: OneOrTogether, clip_norm: float | None, weights: str = "fp32"
) -> None:
    """Refuse what cannot be trained.

    Raises:
        RecipeError: see `TrainStep`.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    trained = [p for p in held_by(optimizer) if id(p) in names and p.requires_grad]
    if not trained:
        raise RecipeError(
            "there is nothing to train: the optimizer holds no parameter of this model that "
            "requires a gradient. Pass the optimizer that was made with model.parameters()."
        )
    for parameter in trained:
        name = names[id(parameter)]
        if parameter.device.type == "meta":
            raise RecipeError(f"the parameter {name} is on the meta device and has no data.")
        if parameter.dtype not in (torch.float32, NATIVE.get(weights)):
            raise RecipeError(
                f"the parameter {name} is {parameter.dtype}, and the recipe keeps weights in "
                f"{weights}. Convert the model with model.float(): what is stored in fewer bits is "
                "rounded by the recipe."
            )
    if any(isinstance(one, LBFGS) for one in each_of(optimizer)):
        raise RecipeError("LBFGS needs a closure and several losses a step; take another one.")
    if clip_norm is not None and not (
        isinstance(clip_norm, (int, float)) and clip_norm > 0 and not math.isnan(clip_norm)
    ):
        raise RecipeError(f"clip_norm must be a positive number or None, not {clip_norm!r}.")


def check_loss(loss: object) -> None:
    """Refuse a loss that cannot be differentiated.

    Raises:
        RecipeError: no tensor, not a scalar, or independent of every parameter.
    """
    if not isinstance(loss, Tensor):
        raise RecipeError(f"the loss must be a scalar tensor, not {type(loss).__name__}.")
    if loss.numel() != 1:
        raise RecipeError(
            f"the loss must be a scalar, not a tensor of shape {tuple(loss.shape)}; take its mean."
        )
    if not loss.requires_grad:
        raise RecipeError("the loss does not depend on any parameter that requires a gradient.")


def check_gradients(model: nn.Module, trained: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradients of what is trained.

    Raises:
        RecipeError: there is none, or one is sparse.
    """
    gradients = [p.grad for p in trained if p.grad is not None]
    if not gradients:
        raise RecipeError(
            "no parameter that the optimizer holds got a gradient: the loss depends on others only."
        )
    if any(g.layout is not torch.strided for g in gradients):
        names = {id(p): name for name, p in model.named_parameters()}
        for p in trained:
            check_dense(p, names.get(id(p), "a parameter beside the model"))
    return gradients


def check_dense(parameter: Tensor, name: str) -> None:
    """Refuse a sparse gradient.

    Raises:
        RecipeError: it is.
    """
    if parameter.grad is not None and parameter.grad.layout is not torch.strided:
        raise RecipeError(
            f"the gradient of {name} is {parameter.grad.layout}; a recipe takes dense ones. "
            "Embeddings make them with sparse=False."
        )


def check_converted(recipe: Recipe, report: Report | None) -> None:
    """Refuse a step in which a recipe with operands of its own had nothing to give them to.

    Raises:
        RecipeError: no product of a weight was converted.
    """
    operands = recipe.operands
    if report is None or report.converted or operands is None or operands.changes_nothing:
        return
    kept = ", ".join(f"{name}: {why}" for name, why in report.kept.items())
    raise RecipeError(
        f"{recipe.name} converted nothing: no product of a weight has its operands "
        f"({kept or 'this model multiplies with no weight'}). Take another recipe, or keep less "
        "out, such as with Kept(head=False)."
    )
