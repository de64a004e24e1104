"""Loss scaling: `torch.amp.GradScaler` with a floor, and its absence behind the same interface."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from floatscope.errors import FloatscopeError
from floatscope.recipes.recipe import LossScaling


class LossScaleCollapse(FloatscopeError):
    """The scale fell below its floor: the gradients are not finite at any scale."""


class LossScaler:
    """Scales a loss and unscales its gradients as `scaling` says; with None, does neither.

    With a scaling, a step whose gradients hold an infinity or a NaN is skipped and the scale backs
    off. Without, every step is applied.
    """

    def __init__(self, scaling: LossScaling | None, device: torch.device) -> None:
        self._scaling = scaling
        self._scaler = torch.amp.GradScaler(
            device.type,
            init_scale=scaling.initial if scaling else 1.0,
            growth_factor=scaling.growth_factor if scaling else 2.0,
            backoff_factor=scaling.backoff_factor if scaling else 0.5,
            growth_interval=scaling.growth_interval if scaling else 1,
            enabled=scaling is not None,
        )

    @property
    def scale(self) -> float:
        """The factor that the next backward will use; 1 without scaling."""
        return self._scaler.get_scale()

    def scaled(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Multiply the gradients by the rounded 1 / scale, in place and in fp32."""
        self._scaler.unscale_(optimizer)

    def _back_off(self) -> None:
        """What Torch's scaler does after gradients that are not finite.

        Not left to it, because it looks before unscaling: with a scale below 1, unscaling itself
        can overflow.
        """
        assert self._scaling is not None
        state = self._scaler.state_dict()
        self._scaler.update()
        scale = state["scale"] * self._scaling.backoff_factor
        self._scaler.load_state_dict({**state, "scale": scale, "_growth_tracker": 0})

    def skips(self, *, finite: bool) -> bool:
        """Whether a step with such gradients is skipped."""
        return self._scaling is not None and not finite

    def step(self, optimizer: Optimizer, *, finite: bool) -> bool:
        """Apply the update unless it must be skipped; returns whether it was skipped.

        Raises:
            LossScaleCollapse: the step was skipped and the scale is now below its floor.
        """
        skipped = self.skips(finite=finite)
        if skipped:
            self._back_off()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()
        if self._scaling is not None and skipped and self.scale < self._scaling.floor:
            raise LossScaleCollapse(
                f"the loss scale fell to {self.scale:g}, below its floor of "
                f"{self._scaling.floor:g}: the gradients are infinite or NaN at every scale. A "
                "falling scale is the symptom; look for an overflow in the forward pass."
            )
        return skipped

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scaler.load_state_dict(state)
