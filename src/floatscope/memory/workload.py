"""Two training steps, cut into stages: what the meter measures and the trace predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from floatscope.memory.engine import Engine, engine_of
from floatscope.memory.keeping import Keeping, keeping_for
from floatscope.memory.ledger import Stage
from floatscope.recipes.backend import choose_backend
from floatscope.recipes.catalogue import recipe as recipe_called
from floatscope.recipes.checks import check_loss
from floatscope.recipes.compute import device_of
from floatscope.recipes.loss_scaling import LossScaler
from floatscope.recipes.recipe import Recipe


def adamw(model: nn.Module) -> Optimizer:
    """Torch's AdamW over all parameters that require gradients, one tensor at a time."""
    return AdamW((p for p in model.parameters() if p.requires_grad), foreach=False)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What to train, and how. Everything is made anew inside the measurement.

    The steps are `TrainStep`'s, without clipping and without what it observes.
    """

    model: Callable[[], nn.Module]
    """Makes the model."""
    batch: Callable[[], Any]
    """Makes the batch: tensors, in sequences, mappings or dataclasses."""
    loss_of: Callable[[Any, Any], Tensor]
    """The scalar loss of model and batch."""
    optimizer: Callable[[nn.Module], Optimizer] = adamw
    """Makes the optimizer."""
    recipe: Recipe | str = "fp32"
    backend: str = "auto"
    """"auto", "native" or "emulated"."""

    def the_recipe(self) -> Recipe:
        """The recipe itself.

        Raises:
            RecipeError: no such recipe.
        """
        return recipe_called(self.recipe) if isinstance(self.recipe, str) else self.recipe


@dataclass
class Alive:
    """What a running workload holds. Changed from stage to stage."""

    stage: Stage = Stage.BUILD
    model: nn.Module = field(default_factory=nn.Module)
    batch: Any = None
    loss: Tensor | None = None
    """Between a forward and its backward."""
    optimizer: Optimizer | None = None
    scaler: LossScaler | None = None
    keeping: Keeping | None = None
    backend: str = "native"
    engine: Engine | None = None
    """Tells what the engine of recipes makes for itself; None where it does nothing."""
    notes: list[str] = field(default_factory=list)
    """What did not happen, and why."""


def stages(
    workload: Workload,
    *,
    prepare: Callable[[Alive], None] | None = None,
    has_values: bool = True,
) -> Iterator[Alive]:
    """Run the stages in their order; yields, after each, what is alive.

    Args:
        workload: what to run.
        prepare: may exchange model and batch when they are made and nothing depends on them yet.
        has_values: whether tensors have values. Without, the update is applied unasked: loss
            scaling cannot look for infinities.

    Raises:
        RecipeError: an unknown recipe or backend, or a loss that cannot be differentiated.
    """
    recipe = workload.the_recipe()
    alive = Alive()
    for alive.stage in Stage:
        match alive.stage:
            case Stage.BUILD:
                _build(workload, recipe, alive, prepare)
            case Stage.FORWARD | Stage.FORWARD_2:
                _forward(workload, alive)
            case Stage.BACKWARD | Stage.BACKWARD_2:
                _backward(alive)
            case Stage.OPTIMIZER:
                _update(alive, has_values=has_values)
            case Stage.ZERO_GRAD:
                alive.model.zero_grad(set_to_none=True)
                _optimizer(alive).zero_grad(set_to_none=True)
        yield alive


def _build(
    workload: Workload,
    recipe: Recipe,
    alive: Alive,
    prepare: Callable[[Alive], None] | None,
) -> None:
    alive.model = workload.model()
    alive.batch = workload.batch()
    if prepare is not None:
        prepare(alive)
    device = device_of(alive.model)
    alive.backend = choose_backend(recipe, device, workload.backend)
    alive.engine = engine_of(recipe, alive.backend)
    alive.keeping = keeping_for(recipe, alive.backend)
    alive.batch = alive.keeping.convert(alive.model, alive.batch)
    alive.optimizer = workload.optimizer(alive.model)
    alive.keeping.adopt(alive.model, alive.optimizer)
    alive.notes += [alive.keeping.note] if alive.keeping.note else []
    if any(isinstance(m, torch._dynamo.OptimizedModule) for m in alive.model.modules()):
        alive.notes.append(
            "compiled modules run uncompiled here: what compilation fuses or computes again is not "
            "in these figures"
        )
    alive.scaler = LossScaler(recipe.loss_scaling, device)


def _forward(workload: Workload, alive: Alive) -> None:
    assert alive.keeping is not None
    with alive.keeping.products(alive.model, workload.backend):
        loss = workload.loss_of(alive.model, alive.batch)
    check_loss(loss)
    alive.loss = loss


def _backward(alive: Alive) -> None:
    assert alive.scaler is not None
    assert alive.loss is not None
    torch.autograd.backward(alive.scaler.scaled(alive.loss))
    alive.loss = None


def _update(alive: Alive, *, has_values: bool) -> None:
    assert alive.scaler is not None
    assert alive.keeping is not None
    optimizer, scaler = _optimizer(alive), alive.scaler

    def step() -> None:
        if has_values:
            scaler.step(optimizer, finite=True)
        else:
            optimizer.step()
            scaler._scaler.update()

    has_gradients = any(p.grad is not None for p in alive.model.parameters())
    alive.keeping.update(lambda: scaler.unscale(optimizer), step)
    if has_values and has_gradients and not optimizer.state:
        alive.notes.append(
            "the first step left no optimizer state: the optimizer keeps none, or loss scaling "
            "skipped the step because a gradient was not finite"
        )


def _optimizer(alive: Alive) -> Optimizer:
    assert alive.optimizer is not None
    return alive.optimizer
