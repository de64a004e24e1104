"""Compare recipes on one gradient: same weights, same batch, each against fp64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from floatscope.errors import RecipeError, StudyError
from floatscope.lab.compare.answers import answers
from floatscope.lab.compare.difference import differences
from floatscope.lab.compare.draws import SameDraws
from floatscope.lab.compare.passes import Bench, Pass, training_step
from floatscope.lab.compare.records import Arm, Comparison, StateComparison, StoredWeights
from floatscope.lab.models import output_for, trained_parameters
from floatscope.lab.probe.subject import State, Subject
from floatscope.lab.run.environment import environment
from floatscope.lab.unchanged import on_copies
from floatscope.recipes import Recipe, check_backend, recipe
from floatscope.recipes.plain import recipe_given
from floatscope.recipes.report import Report
from floatscope.recipes.scalings import StaticScaling

FLOOR = "fp32"
RECIPES = (
    "tf32", "bf16-mixed", "fp16-mixed", "fp8-current", "mxfp8", "mxfp6", "mxfp4", "nvfp4",
)  # fmt: skip
"""What is compared where nothing is named; fp32 always is."""

UNSTEADY = 1e-3
"""From this error of fp32 on it is checked whether two passes agree."""

Announce = Callable[[str], AbstractContextManager[object]]


def compare(
    model: nn.Module,
    given: Any,
    recipes: Sequence[Recipe | str] = RECIPES,
    *,
    scale: float | None = None,
    seed: int = 0,
    backend: str = "auto",
) -> StateComparison:
    """Compare the gradients of recipes, at the model's weights and on one batch, with fp64.

    The reference is the same model with all of its arithmetic in fp64, the batch and what dropout
    draws the same. A recipe's gradient is the one that the first step of a training applies: if
    it scales its loss and an element is not finite, at the next smaller scale. Recipes that
    store weights in fewer bits, and their references, are computed at the weights as stored.

    Args:
        model: with fp32 parameters; it is left as it was.
        given: a function of the model that returns its loss, or a batch: what the model is called
            with, to return its loss (see `floatscope.lab.models.factory_called`).
        recipes: recipes, names of the catalogue or TOML files; fp32 is always compared, as the
            floor.
        scale: a loss scale for recipes that scale their loss, in place of their own.
        seed: of what the model draws and of stochastic rounding.
        backend: who computes 16-bit products: "auto", "native" or "emulated".

    Returns:
        Differences from fp64 by recipe, whole and by parameter; `arm("mxfp8").whole.error`.

    Raises:
        RecipeError: an unknown recipe or backend, or no recipe that can be computed on the model.
        StudyError: no loss, no fp64 reference, or nothing in it to compare with; the message says
            what and why.
    """
    state = State("as given", model, lambda model: output_for(model, given))
    return _compare_state(state, checked(recipes, scale, backend), scale, seed, backend)


def compare_subject(
    subject: Subject,
    recipes: Sequence[Recipe | str] = RECIPES,
    *,
    scale: float | None = None,
    seed: int = 0,
    backend: str = "auto",
    announce: Announce = lambda _: nullcontext(),
) -> Comparison:
    """`compare` every state of a subject.

    Args:
        subject: of what.
        recipes: see `compare`, as the other options.
        scale: see there.
        seed: see there.
        backend: see there.
        announce: told what happens next, and held open while it does.

    Raises:
        RecipeError, StudyError: as `compare`.
    """
    chosen = checked(recipes, scale, backend)
    states = tuple(
        _compare_state(state, chosen, scale, seed, backend, announce) for state in subject.states
    )
    used = {arm.backend for state in states for arm in state.arms}
    return Comparison(
        label=subject.label,
        origin=subject.origin,
        seed=seed,
        environment=environment(", ".join(sorted(used))),
        states=states,
    )


def checked(
    recipes: Sequence[Recipe | str], scale: float | None = None, backend: str = "auto"
) -> tuple[Recipe, ...]:
    """The recipes to compare, fp32 first and each once.

    Raises:
        RecipeError: an unknown recipe or backend, two recipes of one name, or a scale that is no
            positive number or has nothing to scale.
    """
    check_backend(backend)
    chosen = tuple(dict.fromkeys([recipe(FLOOR), *map(_called, recipes)]))
    twice = [r.name for r in chosen if [other.name for other in chosen].count(r.name) > 1]
    if twice:
        raise RecipeError(f"two different recipes are called {twice[0]}; give one another name.")
    if scale is not None:
        StaticScaling(scale=scale)
        if not any(r.loss_scaling for r in chosen):
            raise RecipeError(
                f"a loss scale of {scale:g} would change nothing: none of "
                f"{', '.join(r.name for r in chosen)} scales its loss. fp16-mixed does."
            )
    return chosen


def _called(given: Recipe | str) -> Recipe:
    """The recipe itself, in the file, or of the catalogue."""
    if isinstance(given, Recipe):
        return given
    return recipe_given(given)


def _compare_state(
    state: State,
    recipes: Sequence[Recipe],
    scale: float | None,
    seed: int,
    backend: str,
    announce: Announce = lambda _: nullcontext(),
) -> StateComparison:
    trained = trained_parameters(state.model)
    under_way = _UnderWay(Bench(state, seed, SameDraws()), scale, backend)
    with announce(f"{state.name}: fp64"):
        exact = under_way.exact(FLOOR)
    refused: dict[str, str] = {}
    for i, chosen in enumerate(recipes):
        with announce(f"{state.name}: {chosen.name} ({i + 1} of {len(recipes)})"):
            try:
                under_way.take(chosen)
            except RecipeError as error:
                refused[chosen.name] = str(error)
                if len(refused) == max(1, len(recipes) - 1):  # all, fp32 apart
                    raise
    found = StateComparison(
        name=state.name,
        loss=exact.loss,
        arms=tuple(sorted(under_way.arms, key=_order)),
        stored=under_way.stored(),
        without_gradient=tuple(name for name in trained if name not in exact.gradients),
        refused=refused,
        drew=tuple(sorted(under_way.bench.draws.drew)),
        answers=(),
    )
    return replace(found, answers=tuple(answers(found, recipes)))


class _UnderWay:
    """A state whose recipes are being compared."""

    def __init__(self, bench: Bench, scale: float | None, backend: str) -> None:
        self.bench, self.scale, self.backend = bench, scale, backend
        self.arms: list[Arm] = []
        self._exact: dict[str, Pass] = {}
        self._floor: dict[str, Tensor] = {}

    def exact(self, weights: str) -> Pass:
        """The reference at the weights as they are now, which are in the format `weights`."""
        if weights not in self._exact:
            self._exact[weights] = self.bench.exact()
        return self._exact[weights]

    def take(self, chosen: Recipe) -> None:
        """Compare one more recipe; the first is fp32."""
        bench, weights = self.bench, _weights_of(chosen)
        with on_copies(bench.model):
            step = training_step(bench.model, chosen, self.scale, self.backend, bench.seed)
            exact = self.exact(weights)
            found = bench.under(step)
            whole, layers = differences(found.gradients, exact.gradients)
            if not self.arms and whole.error > UNSTEADY:
                _check_repeats(found, bench.under(step))
        self._floor = self._floor or found.gradients
        report = found.report or Report()
        self.arms.append(
            Arm(
                recipe=chosen.name,
                arithmetic=chosen.to_dict(),
                backend=step.backend,
                loss=found.loss,
                loss_scale=found.loss_scale,
                skipped=found.skipped,
                is_fp32=_same(found.gradients, self._floor),
                converted=None if chosen.operands is None else report.converted.total(),
                kept=report.kept,
                left=dict(report.left),
                weights=weights,
                whole=whole,
                layers=layers,
            )
        )

    def stored(self) -> tuple[StoredWeights, ...]:
        """What rounding the weights does by itself."""
        found: list[StoredWeights] = []
        for weights, exact in self._exact.items():
            if weights != FLOOR:
                whole, _ = differences(exact.gradients, self._exact[FLOOR].gradients)
                found.append(StoredWeights(weights=weights, cosine=whole.cosine, error=whole.error))
        return tuple(found)


def _weights_of(chosen: Recipe) -> str:
    """The format of the weights that products see: masters are rounded too, before them."""
    stored = chosen.stored
    return stored.weights if stored.master in ("", "fp32") else f"{stored.master}, {stored.weights}"


def _order(arm: Arm) -> tuple[bool, bool, float]:
    """fp32 first, then from the smallest error to the largest, and what is not finite."""
    error = arm.whole.error
    return arm.recipe != FLOOR, math.isnan(error), error


def _same(gradients: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    return gradients.keys() == others.keys() and all(
        torch.equal(gradients[name], others[name]) for name in gradients
    )


def _check_repeats(first: Pass, second: Pass) -> None:
    """Refuse a loss that is another one each time; called where fp32 and fp64 lie far apart.

    Raises:
        StudyError: two passes in fp32 differ by more than rounding.
    """
    exact = {name: g.double() for name, g in first.gradients.items()}
    whole, _ = differences(second.gradients, exact)
    if whole.error > UNSTEADY:
        raise StudyError(
            f"two passes in fp32 give gradients that differ by {100 * whole.error:.2g} %: the loss "
            "is another one each time. It must be that of one and the same batch; do not draw the "
            "next one inside."
        )
