"""Recipes of a user's own in a study: files and tables become whole definitions in the plan.

A plan, and so its records and the identities of its runs, holds no path: the file may change or go
without changing what was run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floatscope.errors import FloatscopeError, RecipeError
from floatscope.recipes import CATALOGUE, Recipe
from floatscope.recipes.plain import recipe_given

if TYPE_CHECKING:
    from floatscope.lab.study.plan import StudyPlan

OF_A_STUDY = frozenset(("preset", "recipes", "seeds", "model", "train", "question", "stress"))
OF_A_RECIPE = frozenset(("base", "products", "operands", "kept", "stored", "loss_scaling"))


def named(
    given: Any, *, beside: Path = Path(), known: Iterable[Recipe] = ()
) -> tuple[Any, list[Recipe]]:
    """What a study's `recipes` mean: the names of all, and the definitions of those of one's own.

    Args:
        given: of each recipe its name, its TOML file, or its table with the keys of such a file.
            What is none of these is passed on, for the plan to refuse.
        beside: the folder that paths start from.
        known: recipes of one's own that a name alone may mean.

    Raises:
        RecipeError: a file or table that describes no recipe, or two recipes of one name.
    """
    if not isinstance(given, (list, tuple)):
        return given, []
    called = {recipe.name: recipe for recipe in known}
    made = [_made(one, beside, called) for one in given]
    own: dict[str, Recipe] = {}
    for recipe in (one for one in made if isinstance(one, Recipe) and one.name not in CATALOGUE):
        if own.setdefault(recipe.name, recipe) != recipe:
            raise RecipeError(
                f"two different recipes are called {recipe.name}. Give one another name: "
                'name = "..." in its file.'
            )
    return [one.name if isinstance(one, Recipe) else one for one in made], [*own.values()]


def _made(given: Any, beside: Path, known: Mapping[str, Recipe]) -> Any:
    """The recipe itself; a name that is left to the plan; or what is neither."""
    if isinstance(given, Mapping):
        return Recipe.from_dict(given)
    if not isinstance(given, str):
        return given
    if given.endswith(".toml"):
        path = beside / given
        if not path.exists():
            raise RecipeError(
                f"there is no recipe file {path}. A study that was begun goes on without it: "
                "floatscope study run FOLDER."
            )
        try:
            return recipe_given(str(path))
        except RecipeError:
            if OF_A_STUDY & keys_of(path):
                raise RecipeError(
                    f"{path} is a study file, not a recipe: floatscope study run {path}."
                ) from None
            raise
    return known.get(given, given)


def keys_of(path: Path) -> set[str]:
    """The keys at the top of a TOML file; none if it cannot be read."""
    with suppress(OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {*tomllib.loads(path.read_text(encoding="utf-8-sig"))}
    return set()


def try_out(recipes: Iterable[Recipe], plan: StudyPlan, backend: str) -> None:
    """Take one step under each, on one sequence, with the plan's model: before any run begins.

    Raises:
        RecipeError: one cannot be carried out on this model, or would change none of its products.
    """
    import torch

    from floatscope.lab.run.batches import Batch
    from floatscope.lab.run.plan import RunPlan
    from floatscope.lab.run.train import batch_loss, initial_model, make_optimizer
    from floatscope.recipes.loss_scaling import LossScaleCollapse
    from floatscope.recipes.train_step import TrainStep

    config, z_loss = plan.model, plan.train.z_loss
    batch = Batch(*torch.arange(2 * config.context).remainder(config.vocab_size).view(2, 1, -1))
    for recipe in recipes:
        run = RunPlan(recipe=recipe, seed=plan.seeds[0], model=config, train=plan.train)
        model = initial_model(run)
        try:
            step = TrainStep(model, make_optimizer(model, run.train), recipe, backend=backend)
            with suppress(LossScaleCollapse):  # which a study is there to find
                step(lambda m: batch_loss(m, batch, z_loss))
        except FloatscopeError as error:
            raise RecipeError(
                f"the recipe {recipe.name} cannot train this study's model: {error} No run was "
                "started."
            ) from None
