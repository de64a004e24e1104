"""Loss scaling: the scale's path, and Torch's own arithmetic on gradients.

`torch.amp.GradScaler` multiplies the loss and the gradients, on whatever device; the scale itself
moves as `scale_path.py` says. Without scaling the same interface does nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from floatscope.errors import RecipeError
from floatscope.recipes.scale_path import LossScaleCollapse as LossScaleCollapse
from floatscope.recipes.scale_path import ScalePath
from floatscope.recipes.scalings import Scaling


class LossScaler:
    """Scales a loss and unscales its gradients as `scaling` says; with None, does neither.

    With a scaling, a step whose gradients hold an infinity or a NaN is skipped, by all optimizers
    together. Without, every step is applied.
    """

    def __init__(self, scaling: Scaling | None, device: torch.device) -> None:
        self._scaling = scaling
        self._path = ScalePath.start(scaling) if scaling else ScalePath(scale=1.0)
        self._scaler = torch.amp.GradScaler(
            device.type, init_scale=self._path.scale, enabled=scaling is not None
        )

    @property
    def scale(self) -> float:
        """The factor that the next backward will use; 1 without scaling."""
        return self._path.scale

    def scaled(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss)

    def unscale(self, *optimizers: Optimizer) -> None:
        """Multiply the gradients by the rounded 1 / scale, in place and in fp32."""
        for optimizer in optimizers:
            self._scaler.unscale_(optimizer)

    def skips(self, *, finite: bool) -> bool:
        """Whether a step with such gradients is skipped."""
        return self._scaling is not None and not finite

    def step(self, *optimizers: Optimizer, finite: bool) -> bool:
        """Apply the updates unless the step must be skipped; returns whether it was skipped.

        Whether gradients are finite is not left to Torch's scaler, which looks before unscaling:
        with a scale below 1, unscaling itself can overflow.

        Raises:
            LossScaleCollapse: the step was skipped, and no scale helps.
        """
        skipped = self.skips(finite=finite)
        if not skipped:
            for optimizer in optimizers:
                self._scaler.step(optimizer)
        if self._scaling is None:
            return False
        try:
            if skipped:
                self._path.skipped(self._scaling)
            else:
                self._path.applied(self._scaling)
        finally:
            self._scaler.update(self.scale)
        return skipped

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers; empty without scaling."""
        return self._path.state_dict() if self._scaling is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, of `torch.amp.GradScaler` too.

        Raises:
            RecipeError: it is none, or it is one and there is no scaling here.
        """
        if self._scaling is None:
            if state:
                raise RecipeError("this state has a loss scale, and the recipe has none.")
            return
        self._path = ScalePath.from_state(state, self._scaling)
        # Torch's scaler takes a state only as a whole; its own constants are never used.
        own = self._scaler.state_dict()
        self._scaler.load_state_dict({**own, "scale": self.scale})
