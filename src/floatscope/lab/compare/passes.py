"""One backward pass of a model: in fp64, or as a training step under a recipe makes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from floatscope.errors import FloatscopeError, StudyError
from floatscope.lab.compare.double import in_double
from floatscope.lab.compare.draws import SameDraws
from floatscope.lab.models import loss_in
from floatscope.lab.probe.subject import State
from floatscope.lab.unchanged import unchanged
from floatscope.recipes import Recipe
from floatscope.recipes.loss_scaling import LossScaleCollapse
from floatscope.recipes.report import Report
from floatscope.recipes.scalings import LossScaling, StaticScaling
from floatscope.recipes.train_step import TrainStep


@dataclass(frozen=True)
class Pass:
    """What one backward pass gave."""

    loss: float
    """Unscaled."""
    gradients: dict[str, Tensor]
    """By parameter, unscaled. Parameters without a gradient are absent."""
    loss_scale: float = 1.0
    skipped: int = 0
    """Passes before it that a training would have skipped."""
    report: Report | None = None
    """What became of the products; None if nobody looked."""


@dataclass(frozen=True)
class Bench:
    """A model in one state, and what all passes of it share."""

    state: State
    seed: int
    draws: SameDraws

    @property
    def model(self) -> nn.Module:
        return self.state.model

    def exact(self) -> Pass:
        """The pass in fp64, at the weights as they are now.

        Raises:
            StudyError: the model cannot be computed in fp64, or its gradient there is not finite,
                zero everywhere, or sparse.
        """
        with self._running("in fp64"), unchanged(self.model, self.seed), self.draws:
            with in_double(self.model):
                loss = loss_in(self.state.loss_of(self.model))
                loss.backward()
            gradients = _gradients(self.model)
        if loss.dtype is not torch.float64:
            raise StudyError(
                f"no fp64 reference: the loss comes back as {loss.dtype} from a model in fp64."
            )
        _check_exact(gradients)
        return Pass(loss.item(), gradients)

    def under(self, step: TrainStep) -> Pass:
        """The pass that a training step makes, without its update.

        After a pass that is skipped it goes on as training does, with the next smaller loss scale,
        unless the scale is fixed or the loss itself is not finite.

        Args:
            step: of this model, with an optimizer that never stepped.

        Raises:
            RecipeError: the recipe cannot be computed on this model.
            StudyError: the loss function raised.
        """
        skipped, moves = 0, isinstance(step.recipe.loss_scaling, LossScaling)
        while True:
            found, is_skipped = self._attempt(step)
            if not (is_skipped and moves and math.isfinite(found.loss)):
                return replace(found, skipped=skipped)
            skipped += 1

    def _attempt(self, step: TrainStep) -> tuple[Pass, bool]:
        """One call of `step`, and whether it was skipped and may be tried again."""
        seen: list[dict[str, Tensor]] = []
        losses: list[float] = []

        def loss_of(model: nn.Module) -> Tensor:
            loss = loss_in(self.state.loss_of(model))
            losses.append(loss.item())
            return loss

        scale, report, is_skipped = step.loss_scale, None, False
        with (
            self._running(f"under {step.recipe.name}"),
            unchanged(self.model, self.seed),
            self.draws,
            suppress(LossScaleCollapse),  # the gradients that it is about have been seen
        ):
            result = step(loss_of, lambda model: seen.append(_taken(model)))
            report, is_skipped = result.converted, result.skipped
        return Pass(losses[-1], seen[-1], loss_scale=scale, report=report), is_skipped

    @contextmanager
    def _running(self, how: str) -> Iterator[None]:
        """Say in which pass the user's own code, or Torch, raised."""
        try:
            yield
        except FloatscopeError:
            raise
        except Exception as error:
            raise StudyError(
                f"{self.state.name}: the pass {how} raised {type(error).__name__}: {error}"
            ) from error


def training_step(
    model: nn.Module, recipe: Recipe, scale: float | None, backend: str, seed: int
) -> TrainStep:
    """A training step of `model`, whose weights are rounded as the recipe stores them.

    Args:
        model: what it trains.
        recipe: how.
        scale: a fixed loss scale in place of the recipe's, if it scales the loss.
        backend: who computes 16-bit products.
        seed: of stochastic rounding.

    Raises:
        RecipeError: the model cannot be trained under this recipe.
    """
    if scale is not None and recipe.loss_scaling is not None:
        recipe = replace(recipe, loss_scaling=StaticScaling(scale=scale))
    trained = [p for p in model.parameters() if p.requires_grad]
    sgd = torch.optim.SGD(trained)
    return TrainStep(model, sgd, recipe, backend=backend, seed=seed, must_convert=False)


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}


def _taken(model: nn.Module) -> dict[str, Tensor]:
    """The gradients, taken away, so that there is nothing to update with."""
    gradients = _gradients(model)
    model.zero_grad(set_to_none=True)
    return gradients


def _check_exact(gradients: Mapping[str, Tensor]) -> None:
    if not gradients:
        raise StudyError("no parameter got a gradient, so there is nothing to compare.")
    for name, gradient in gradients.items():
        if gradient.layout is not torch.strided:
            raise StudyError(
                f"the gradient of {name} is {gradient.layout}; dense ones can be compared. "
                "Embeddings make them with sparse=False."
            )
        if not bool(gradient.isfinite().all()):
            raise StudyError(
                f"the gradient of {name} is infinite or NaN in fp64 already, so there is nothing "
                "to compare with."
            )
    if not any(bool(g.any()) for g in gradients.values()):
        raise StudyError("every gradient element is zero in fp64 already.")
