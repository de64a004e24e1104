"""The catalogue of recipes, and the choice of a backend."""

from __future__ import annotations

import pytest
import torch

from floatscope.errors import RecipeError
from floatscope.recipes import CATALOGUE, recipe, recipe_for
from floatscope.recipes.backend import choose_backend, has_units

CPU = torch.device("cpu")


def test_the_four() -> None:
    assert [*CATALOGUE][:4] == ["fp32", "bf16-mixed", "fp16-mixed", "fp16-mixed-unscaled"]
    scaling = recipe("fp16-mixed").loss_scaling
    assert scaling is not None
    assert (scaling.initial, scaling.backoff_factor, scaling.growth_factor) == (65536, 0.5, 2)
    assert scaling.growth_interval == 200
    assert recipe("fp16-mixed-unscaled").loss_scaling is None


@pytest.mark.parametrize(
    ("precision", "scaling", "name"),
    [
        ("fp32", None, "fp32"),
        ("fp32", False, "fp32"),
        ("bf16", None, "bf16-mixed"),
        ("fp16", None, "fp16-mixed"),
        ("fp16", True, "fp16-mixed"),
        ("fp16", False, "fp16-mixed-unscaled"),
    ],
)
def test_precision_names_a_recipe(precision: str, scaling: bool | None, name: str) -> None:
    assert recipe_for(precision, scaling) is CATALOGUE[name]


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(RecipeError, match="Did you mean 'bf16-mixed'"):
        recipe("bf16-mixd")
    with pytest.raises(RecipeError, match=r"train\.precision 'fp61'. Did you mean 'fp16'"):
        recipe_for("fp61")
    with pytest.raises(RecipeError, match="needs train.precision"):
        recipe_for("bf16", loss_scaling=True)


def test_backend() -> None:
    assert choose_backend(recipe("fp32"), CPU, "emulated") == "native"
    assert choose_backend(recipe("fp16-mixed"), CPU, "native") == "native"
    assert choose_backend(recipe("fp16-mixed"), CPU, "emulated") == "emulated"
    auto = choose_backend(recipe("fp16-mixed"), CPU)
    assert auto == ("native" if has_units("fp16", CPU) else "emulated")
    with pytest.raises(RecipeError, match="unknown backend 'fast'"):
        choose_backend(recipe("fp16-mixed"), CPU, "fast")
    with pytest.raises(RecipeError, match="computes on the CPU, not on cuda"):
        choose_backend(recipe("fp16-mixed"), torch.device("cuda"), "emulated")
