"""How a loss is scaled: dynamically or by a fixed number. Data only; `loss_scaling.py` does it.

The loss is multiplied by the scale before backward and the gradients are divided by it after
(Micikevicius et al. 2018, arXiv 1710.03740, section 3.2). Unscaling multiplies by 1/scale in fp32,
so a scale below 2^-127, whose inverse fp32 does not hold, is no scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from floatscope.errors import RecipeError

SMALLEST, LARGEST = 2.0**-127, 2.0**127
"""The smallest and the largest scale: powers of two whose inverses are finite in fp32, not zero."""


@dataclass(frozen=True, kw_only=True)
class LossScaling:
    """Dynamic loss scaling, with every constant visible.

    A step whose gradients hold an infinity or a NaN is skipped: a *skip*. The scale backs off at a
    skip and grows after clean steps.

    Raises:
        RecipeError: a constant that makes no sense, or an initial scale outside floor and ceiling.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    initial: float = 65_536.0
    """Scale of the first step."""
    growth_factor: float = 2.0
    """Multiplies the scale after `growth_interval` clean steps in a row."""
    backoff_factor: float = 0.5
    """Multiplies the scale at a skip, once `hysteresis` is used up."""
    growth_interval: int = 200
    """Clean steps in a row before the scale grows."""
    floor: float = 2.0**-24
    """The smallest scale; 0 is 2^-127, where 1/scale ends. Torch's own scaler goes on until 1/scale
    is infinite and then writes NaN into every weight."""
    ceiling: float = LARGEST
    """The largest scale; growth stops there. Apex's is 2^24."""
    hysteresis: int = 1
    """Skips until the scale backs off, as Megatron counts them: this many since the last growth (or
    the start), in a row or not; from then on every skip backs off, until the scale grows. 1 backs
    off at each, as Torch and Apex do. Megatron's default is 2."""
    skips_at_floor: int = 1
    """So many skips in a row that would take the scale below the floor end the run: no scale helps.
    DeepSpeed ends at the first, too; metaseq and Megatron go on for ever."""

    def __post_init__(self) -> None:
        check_positive(self, "initial", "growth_factor", "backoff_factor", "ceiling")
        check_counts(self, "growth_interval", "hysteresis", "skips_at_floor")
        if not self.growth_factor > 1 > self.backoff_factor:
            raise RecipeError("growth_factor is above 1, and backoff_factor between 0 and 1.")
        if not (0 <= self.floor <= self.ceiling <= LARGEST):
            raise RecipeError(
                f"floor {self.floor:g} and ceiling {self.ceiling:g} lie between 0 and 2^127, the "
                "floor below the ceiling."
            )
        if not self.lowest <= self.initial <= self.ceiling:
            raise RecipeError(
                f"the initial scale {self.initial:g} is not between the floor {self.lowest:g} and "
                f"the ceiling {self.ceiling:g}."
            )

    @property
    def lowest(self) -> float:
        """The floor, and at least the smallest scale that has an inverse."""
        return max(self.floor, SMALLEST)


@dataclass(frozen=True, kw_only=True)
class StaticScaling:
    """A fixed loss scale.

    A step whose gradients hold an infinity or a NaN is skipped, as Megatron's `ConstantGradScaler`
    has it. (Apex's static scale applies such a step; Torch has no static scale.)

    Raises:
        RecipeError: a scale that is not between 2^-127 and 2^127, or a count below 1.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    scale: float
    """Of every step."""
    skips_in_a_row: int = 10
    """So many skips in a row end the run, since this scale does not help; 1 raises at the first
    overflow."""

    def __post_init__(self) -> None:
        check_positive(self, "scale")
        check_counts(self, "skips_in_a_row")
        if not SMALLEST <= self.scale <= LARGEST:
            raise RecipeError(f"the scale {self.scale:g} is not between 2^-127 and 2^127.")


Scaling = LossScaling | StaticScaling


def check_positive(part: Any, *names: str) -> None:
    """Refuse fields that are no positive, finite numbers.

    Raises:
        RecipeError: one is not.
    """
    for name in names:
        value = getattr(part, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise RecipeError(f"{name} must be a positive number, not {value!r}.")


def check_counts(part: Any, *names: str) -> None:
    """Refuse fields that are no whole numbers from 1 on.

    Raises:
        RecipeError: one is not.
    """
    for name in names:
        value = getattr(part, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RecipeError(f"{name} must be a whole number from 1 on, not {value!r}.")
