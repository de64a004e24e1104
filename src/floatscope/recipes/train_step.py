"""One training step under a recipe, in the one order that is right.

    forward -> scaled backward (for each micro-batch) -> unscale -> count -> clip -> update or skip
    -> new scale

Clipping follows unscaling, or it would clip gradients 65 536 times too large; the norm is taken in
fp32; whatever looks at gradients looks at unscaled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from floatscope.errors import RecipeError
from floatscope.recipes.catalogue import recipe as recipe_called
from floatscope.recipes.checks import (
    check_converted,
    check_gradients,
    check_loss,
    check_trainable,
)
from floatscope.recipes.compute import compute, device_of
from floatscope.recipes.formats_of import Stored
from floatscope.recipes.loss_scaling import LossScaler
from floatscope.recipes.movement import StoredUpdate
from floatscope.recipes.native_fp8 import backend_in_words
from floatscope.recipes.optimizers import OneOrTogether, Optimizers, as_one, each_of, held_by
from floatscope.recipes.recipe import Recipe
from floatscope.recipes.report import Memory, Report
from floatscope.recipes.storage import Storage

LossOf = Callable[[nn.Module], Tensor]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step did."""

    loss: float
    """The unscaled loss, before the update; of micro-batches, the mean."""
    grad_norm: float
    """2-norm of the whole unscaled gradient, before clipping; infinite or NaN if it is."""
    loss_scale: float
    """The scale this step's backward used; 1 without loss scaling."""
    skipped: bool
    """Whether the update was withheld."""
    num_nonfinite: int
    """Gradient elements that are infinite or NaN, after unscaling."""
    finite_weights: bool
    """Whether every weight is finite after the step."""
    stored: StoredUpdate | None = None
    """What became of the update in storage; None if all is stored in fp32, or nothing was."""
    converted: Report | None = None
    """Which products had operands of their own; None if the recipe has none."""


class TrainStep:
    """Trains `model` with `optimizer` as `recipe` says, one call a step.

    Args:
        model: any module with fp32 parameters; they stay fp32.
        optimizer: any `torch.optim` optimizer that steps without a closure, over all or some of the
            model's parameters, or several that share none. Only what they hold is unscaled,
            counted, clipped (by one norm) and updated; all step or none does.
        recipe: what to compute in which format, or its name.
        clip_norm: largest 2-norm of the gradient, applied after unscaling; None does not clip.
        backend: "auto", "native" or "emulated" (see `choose_backend` and `uses_units`).
        seed: of everything that the recipe rounds stochastically.
        must_convert: whether the first step refuses a recipe whose operands it had no use for.

    Raises:
        RecipeError: no parameter to train, one that is not fp32 or has no data, an optimizer of
            another model or one that needs a closure, two that hold the same parameter, or a
            `clip_norm` that is no positive number.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        recipe: Recipe | str,
        *,
        clip_norm: float | None = None,
        backend: str = "auto",
        seed: int = 0,
        must_convert: bool = True,
    ) -> None:
        self.model = model
        self.optimizer: OneOrTogether = as_one(optimizer)
        self.recipe = recipe_called(recipe) if isinstance(recipe, str) else recipe
        self.clip_norm = clip_norm
        self._must_convert = must_convert
        stored = self.recipe.stored
        check_trainable(model, self.optimizer, clip_norm, stored.weights)
        self._requested = backend
        self.backend = backend_in_words(self.recipe, device_of(model), backend)
        """Who computes, as records say it."""
        self._scaler = LossScaler(self.recipe.loss_scaling, device_of(model))
        self._memory = Memory(seed=seed)
        self._storage: Storage | None = None
        if stored != Stored():
            self._storage = Storage(stored, model, each_of(self.optimizer), seed=seed)
            self._storage.prepare()

    @property
    def loss_scale(self) -> float:
        """The scale that the next step's backward will use; 1 without loss scaling."""
        return self._scaler.scale

    def __call__(
        self,
        loss_of: LossOf | Sequence[LossOf],
        observe: Callable[[nn.Module], None] | None = None,
    ) -> StepResult:
        """Run one step.

        Args:
            loss_of: computes the loss, a scalar tensor, finite or not, from the model. Several are
                micro-batches, one after another: the step's loss is their mean, and their gradients
                are added up in the recipe's format.
            observe: called once when the gradients are unscaled and not yet clipped; must not
                change them.

        Raises:
            LossScaleCollapse: no loss scale makes the gradients finite.
            RecipeError: the loss is no scalar tensor, or does not depend on a parameter; a gradient
                is sparse; the recipe has converted nothing.
        """
        self.model.zero_grad(set_to_none=True)
        self.optimizer.zero_grad(set_to_none=True)  # what it holds beside the model
        scale = self._scaler.scale
        loss, report = self._differentiated([loss_of] if callable(loss_of) else list(loss_of))
        if self._must_convert:
            check_converted(self.recipe, report)
            self._must_convert = False
        trained = self._trained()
        gradients = check_gradients(self.model, trained)
        self._scaler.unscale(*each_of(self.optimizer))
        num_nonfinite = sum(g.numel() - int(g.isfinite().sum()) for g in gradients)
        if observe is not None:
            observe(self.model)
        norm = _total_norm(gradients, finite=num_nonfinite == 0)
        if self.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(trained, self.clip_norm, norm)
        skipped, stored = self._update(finite=num_nonfinite == 0)
        return StepResult(
            loss=loss,
            grad_norm=norm.item(),
            loss_scale=scale,
            skipped=skipped,
            num_nonfinite=num_nonfinite,
            finite_weights=_all_finite(self.model),
            stored=stored,
            converted=report,
        )

    def _differentiated(self, parts: list[LossOf]) -> tuple[float, Report | None]:
        """The mean loss of the parts, whose gradients are added up, and what was converted."""
        if not parts:
            raise RecipeError("a step needs at least one micro-batch.")
        self._memory.step += 1
        losses, whole = [], None
        for self._memory.micro_step, loss_of in enumerate(parts):
            with compute(self.recipe, self.model, self._requested, self._memory) as report:
                loss = loss_of(self.model)
            check_loss(loss)
            mean = loss / len(parts) if len(parts) > 1 else loss
            self._scaler.scaled(mean).backward()
            losses.append(loss.item())
            if self._storage is not None:
                self._storage.accumulate()
            if whole is None:
                whole = report
            elif report is not None:
                whole.add(report)
        return sum(losses) / len(losses), whole

    def _update(self, *, finite: bool) -> tuple[bool, StoredUpdate | None]:
        """Step the optimizer, in storage if there is one; whether the step was skipped."""
        if self._storage is None or self._scaler.skips(finite=finite):
            return self._scaler.step(*each_of(self.optimizer), finite=finite), None
        update = self._storage.step(
            lambda: self._scaler.step(*each_of(self.optimizer), finite=finite)
        )
        return False, update

    def _trained(self) -> list[nn.Parameter]:
        """What optimizers hold, in the model's order: a norm's last bit depends on it."""
        held = {id(p): p for p in held_by(self.optimizer)}
        mine = [held.pop(id(p)) for p in self.model.parameters() if id(p) in held]
        return [*mine, *held.values()]

    @torch.no_grad()
    def evaluate(self, loss_of: Callable[[nn.Module], Tensor]) -> float:
        """The loss, computed as the recipe computes it, without gradients or update."""
        with compute(self.recipe, self.model, self._requested):
            return loss_of(self.model).item()

    def state_dict(self) -> dict[str, Any]:
        """State of the loss scaler, of storage and of quantization.

        Model and optimizer have their own. With neither storage nor quantized operands it is the
        scaler's alone.
        """
        state = self._scaler.state_dict()
        if self._storage is not None:
            state = {**state, "storage": self._storage.state_dict()}
        if self.recipe.operands is not None:
            state = {**state, "quantization": asdict(self._memory)}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave.

        Raises:
            RecipeError: the state is of another recipe.
        """
        rest = dict(state)
        storage, memory = rest.pop("storage", None), rest.pop("quantization", None)
        expected = (self._storage is not None, self.recipe.operands is not None)
        if expected != (storage is not None, memory is not None):
            raise RecipeError(
                f"this state was not saved by a step of the recipe {self.recipe.name}."
            )
        self._scaler.load_state_dict(rest)
        if self._storage is not None:
            self._storage.load_state_dict(storage)
        if memory is not None:
            self._memory = Memory(**memory)


def _total_norm(gradients: list[Tensor], *, finite: bool) -> Tensor:
    """The 2-norm of all; in fp64 where fp32 cannot hold that of finite elements.

    Clipping by an infinite norm would write zeros.
    """
    norm = nn.utils.get_total_norm(gradients)
    if finite and not bool(norm.isfinite()):
        norm = nn.utils.get_total_norm([g.double() for g in gradients])
    return norm


def _all_finite(model: nn.Module) -> bool:
    return all(bool(p.isfinite().all()) for p in model.parameters())
