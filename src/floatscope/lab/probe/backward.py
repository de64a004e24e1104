"""One backward pass of one batch: in fp32, or as a recipe computes, at a given scale."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from floatscope.errors import FloatscopeError, SpectrumError, StudyError
from floatscope.lab.models import loss_in
from floatscope.lab.probe.subject import State
from floatscope.lab.unchanged import unchanged
from floatscope.recipes import Recipe
from floatscope.recipes.compute import compute
from floatscope.spectrum.capture.capture import Capture, capture
from floatscope.spectrum.spectrum import Spectrum


@dataclass(frozen=True)
class Pass:
    """What one backward pass gave."""

    loss: float
    """Unscaled."""
    gradients: dict[str, Tensor]
    """By parameter, scaled as they were computed. Parameters without a gradient are absent."""
    on_the_way: dict[str, Spectrum]
    """Of the gradients of module outputs, by module, scaled as they were computed."""


def run(state: State, recipe: Recipe, exponent: int = 0, backend: str = "auto") -> Pass:
    """Forward, loss times 2^exponent, backward. The model is left as it was.

    Raises:
        StudyError: no scalar loss.
        RecipeError: the recipe cannot be computed on this model.
    """
    model = state.model
    with unchanged(model), _watched(model) as seen:
        try:
            with compute(recipe, model, backend):
                loss = loss_in(state.loss_of(model))
            (loss.float() * 2.0**exponent).backward()
        except FloatscopeError:
            raise
        except Exception as error:
            raise StudyError(
                f"{state.name}: the pass in {recipe.products} at scale 2^{exponent} raised "
                f"{type(error).__name__}: {error}. If only some formats fail, name others with "
                "--recipe, or --backend emulated."
            ) from error
        gradients = {
            name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None
        }
    on_the_way: dict[str, Spectrum] = {}
    for record in seen.records if seen is not None else ():
        held = on_the_way.get(record.module, Spectrum.empty())
        on_the_way[record.module] = held + record.spectrum
    return Pass(loss=loss.item(), gradients=gradients, on_the_way=on_the_way)


@contextmanager
def _watched(model: nn.Module) -> Iterator[Capture | None]:
    """A capture of the gradients on the way; None if no module has an output to watch."""
    try:
        watched = capture(model, roles=("activation_gradient",))
        seen = watched.__enter__()
    except SpectrumError:
        yield None
        return
    try:
        yield seen
    finally:
        watched.__exit__(None, None, None)
