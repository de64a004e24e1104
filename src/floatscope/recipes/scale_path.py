"""How a loss scale moves: whole numbers and one fp32 number, without tensors."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from floatscope.errors import FloatscopeError, RecipeError
from floatscope.recipes.scalings import LARGEST, SMALLEST, LossScaling, Scaling, StaticScaling

ADVICE = (
    "the gradients are infinite or NaN at every scale. A falling scale is the symptom; look for an "
    "overflow in the forward pass."
)


class LossScaleCollapse(FloatscopeError):
    """The scale is at its floor, or fixed, and steps go on overflowing."""


@dataclass
class ScalePath:
    """The loss scale of a run, step by step.

    Torch's arithmetic: a product in fp64, rounded to fp32.
    """

    scale: float
    """That the next backward uses."""
    clean: int = 0
    """Clean steps in a row since the last skip or growth."""
    patience: int = 1
    """Skips left until the scale backs off; 0 once it does at every skip."""
    stuck: int = 0
    """Skips in a row that could change nothing: at the floor, or of a fixed scale."""

    @staticmethod
    def start(scaling: Scaling) -> ScalePath:
        """Before the first step."""
        if isinstance(scaling, StaticScaling):
            return ScalePath(scale=_fp32(scaling.scale))
        return ScalePath(scale=_fp32(scaling.initial), patience=scaling.hysteresis)

    def applied(self, scaling: Scaling) -> None:
        """The step was clean."""
        self.stuck = 0
        if isinstance(scaling, StaticScaling):
            return
        self.clean += 1
        if self.clean == scaling.growth_interval:
            self.clean, self.patience = 0, scaling.hysteresis
            self.scale = _fp32(min(self.scale * scaling.growth_factor, scaling.ceiling))

    def skipped(self, scaling: Scaling) -> None:
        """The step was skipped.

        Raises:
            LossScaleCollapse: and that was once too often.
        """
        self.clean = 0
        if isinstance(scaling, StaticScaling):
            self._skipped_at_fixed(scaling)
            return
        self.patience = max(0, self.patience - 1)
        if self.patience:
            return
        new, lowest = _fp32(self.scale * scaling.backoff_factor), scaling.lowest
        if new >= lowest:
            self.scale, self.stuck = new, 0
            return
        self.scale = _fp32(lowest)
        self.stuck += 1
        if self.stuck >= scaling.skips_at_floor:
            raise LossScaleCollapse(_collapse(scaling, new))

    def _skipped_at_fixed(self, scaling: StaticScaling) -> None:
        self.stuck += 1
        if self.stuck >= scaling.skips_in_a_row:
            steps = "a step" if self.stuck == 1 else f"{self.stuck} steps in a row"
            raise LossScaleCollapse(
                f"{steps} overflowed at the fixed loss scale of {scaling.scale:g}. Lower it, or "
                "take dynamic scaling; if it overflows at every scale, look at the forward pass."
            )

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers; what `torch.amp.GradScaler` has too is called as it is there."""
        return {"scale": self.scale, "_growth_tracker": self.clean, "_patience": self.patience,
                "_stuck": self.stuck}  # fmt: skip

    @staticmethod
    def from_state(state: dict[str, Any], scaling: Scaling) -> ScalePath:
        """Go on from a state; one of `torch.amp.GradScaler` will do. A fixed scale stays as it is.

        Raises:
            RecipeError: it is none, or its scale has no inverse in fp32.
        """
        if not {"scale", "_growth_tracker"} <= state.keys():
            raise RecipeError("this state was not saved by a step that scales its loss.")
        path = ScalePath.start(scaling)
        if isinstance(scaling, LossScaling):
            path.scale = float(state["scale"])
            if not SMALLEST <= path.scale <= LARGEST:
                raise RecipeError(f"the state has a loss scale of {path.scale:g}, which is none.")
        path.clean = int(state["_growth_tracker"])
        path.patience = int(state.get("_patience", path.patience))
        path.stuck = int(state.get("_stuck", 0))
        return path


def _collapse(scaling: LossScaling, new: float) -> str:
    lowest = scaling.lowest
    said = f"the loss scale fell to {new:g}, below its floor of {lowest:g}: {ADVICE}"
    if lowest > scaling.floor:
        said += (
            f" (Below {lowest:g} fp32 does not hold 1/scale, and every weight would become NaN.)"
        )
    if scaling.skips_at_floor > 1:
        said += f" It was skipped there {scaling.skips_at_floor} times in a row."
    return said


def _fp32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]
