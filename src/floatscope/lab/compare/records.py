"""What a comparison found, and `compare.json`, which holds all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import WithJsonSchema

from floatscope.lab.run.environment import Environment

SCHEMA_VERSION = 1
NOISE = 0.01
"""A parameter whose gradient fp32 itself misses by more is not called the worst of a recipe."""
NOT_FINITE = ["NaN", "Infinity", "-Infinity"]

Number = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": NOT_FINITE}]})]
"""A number that may be none; JSON has no word for it, so it is a string there."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A gradient against the same in fp64."""

    name: str
    """The parameter; "" for all together."""
    elements: int
    nonzero: int
    """Elements that are not zero in fp64."""
    cosine: Number
    """NaN where an element is not finite or one of the two is zero everywhere."""
    error: Number
    """2-norm of the difference by the 2-norm in fp64; NaN where an element is not finite or all
    are zero in fp64."""
    sign_flips: int
    """Elements whose sign is the other one, of `nonzero`."""
    zeros: int
    """Elements that are exactly zero, of `nonzero`."""
    nonfinite: int
    """Infinities and NaNs, of `elements`."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One recipe's gradient."""

    recipe: str
    arithmetic: dict[str, Any]
    """The recipe's fields that determine the arithmetic."""
    backend: str
    loss: Number
    loss_scale: Number
    """1 without loss scaling."""
    skipped: int
    """Passes, at larger loss scales, that a training would have skipped before this one."""
    is_fp32: bool
    """Whether the gradient is that of fp32 to the bit."""
    converted: int | None
    """Products of weights with operands of the recipe's own, forward and backward; None if the
    recipe has none."""
    kept: dict[str, str]
    """Weights whose products were left alone, and why."""
    left: dict[str, int]
    """Products in another dtype than the recipe's, by operation and dtype."""
    weights: str
    """The format of the weights at which recipe and reference were compared; "fp32" for the
    model's own."""
    whole: Difference
    layers: tuple[Difference, ...]
    """By parameter, in the model's order."""


def _badness(row: Difference) -> tuple[float, float]:
    return row.nonfinite / row.elements, 0.0 if math.isnan(row.error) else row.error


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """What storing the weights in fewer bits does by itself: fp64 at both, against each other."""

    weights: str
    cosine: Number
    error: Number


@dataclass(frozen=True, kw_only=True)
class StateComparison:
    """All recipes in one state of the model."""

    name: str
    loss: float
    """In fp64."""
    arms: tuple[Arm, ...]
    """fp32 first, then by the error of the whole, what is not finite last."""
    stored: tuple[StoredWeights, ...]
    without_gradient: tuple[str, ...]
    """Parameters that require a gradient and got none."""
    refused: dict[str, str]
    """Recipes that cannot be computed on this model, and why."""
    drew: tuple[str, ...]
    """Operations that drew random numbers, the same in every pass."""
    answers: tuple[str, ...]
    """What was found, in words."""

    def arm(self, recipe: str) -> Arm:
        """The arm of the recipe called so.

        Raises:
            KeyError: it was not compared.
        """
        return {arm.recipe: arm for arm in self.arms}[recipe]

    def noise(self) -> list[Difference]:
        """fp32's own differences where they exceed 1 %: gradients that cancel to rounding noise."""
        return [row for row in self.arms[0].layers if row.nonzero and not row.error <= NOISE]

    def worst(self, arm: Arm, num: int | None = 1) -> list[Difference]:
        """The parameters whose gradients are off most, by their own relative error; None for all.

        What is not finite comes first. Left out are gradients that are zero in fp64, and those that
        fp32 itself misses by more than 1 %: no recipe is to blame for them.
        """
        noise = {row.name for row in self.noise()}
        rows = [row for row in arm.layers if row.nonzero and row.name not in noise]
        return sorted(rows, key=_badness, reverse=True)[:num]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A subject's recipes compared: `compare.json`."""

    schema: int = SCHEMA_VERSION
    label: str
    origin: dict[str, Any]
    """The run's plan and identity, the preset's plan, or the name of the model's function."""
    seed: int
    """Of what the model draws and of stochastic rounding."""
    environment: Environment
    states: tuple[StateComparison, ...]
