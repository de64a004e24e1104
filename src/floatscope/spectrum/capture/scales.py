"""The loss scale that a backward pass used, and whether a scaler withheld the optimizer's step.

Gradients are measured where autograd delivers them, so still scaled. The scale is read once for
each backward pass, while it runs, because no one changes it then. A power of two shifts the
measured spectrum, exactly, and may be known later than the gradient: a scaler's scale on a device
is cloned there, and the clone is read together with the tallies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from floatscope.errors import SpectrumError

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Scale:
    """The loss scale of one backward pass."""

    value: float | Tensor
    """A number, or a tensor on a device, read later and then expected to be a power of two."""

    @property
    def problem(self) -> str:
        """Why gradients cannot be divided by it, as far as is known; empty if they can."""
        if isinstance(self.value, Tensor) or is_power(self.value):
            return ""
        if not (self.value > 0 and math.isfinite(self.value) and 1 / self.value <= _LARGEST):
            return f"the loss scale was {self.value:g}, by which fp32 gradients cannot be divided"
        return ""

    def divided(self, gradient: Tensor) -> Tensor:
        """The gradient to measure: `gradient` itself for powers of two, which shift its spectrum.

        Otherwise it is divided as `torch.amp.GradScaler` does it: multiplied, in fp32, by the fp32
        number next to 1 / scale. fp64 gradients stay fp64.
        """
        if isinstance(self.value, Tensor) or is_power(self.value):
            return gradient
        wide = gradient if gradient.dtype is torch.float64 else gradient.float()
        return wide * float(np.float32(1 / self.value))

    def exponent(self) -> int | str:
        """By how much to lower the octaves of what was measured; waits for the device.

        Or why that is not known: a scale that was read late and is no power of two.
        """
        value = self.value.item() if isinstance(self.value, Tensor) else self.value
        if is_power(value):
            return math.frexp(value)[1] - 1
        if isinstance(self.value, Tensor):
            return f"the loss scale was {value:g}, no power of two, which was known too late"
        return 0


UNSCALED = Scale(1.0)


class LossScale(Protocol):
    """Where loss scales come from."""

    def read(self) -> Scale:
        """The scale of the backward pass that is running."""
        ...

    def mark(self) -> Any:
        """What to remember of a backward pass, to tell later what became of its gradients."""
        ...

    def was_withheld(self, mark: Any) -> bool:
        """Whether the optimizer's step for that pass has been skipped since."""
        ...


def loss_scale_of(given: Any, optimizer: Optimizer | None) -> LossScale:
    """What reads the scale from the `loss_scale` argument of `capture`.

    Raises:
        SpectrumError: it is none of the kinds that are known, or a number that is no scale.
    """
    if given is None:
        return _Read(lambda: 1.0, None)
    if isinstance(given, GradScaler):
        return _FromScaler(given, optimizer) if given.is_enabled() else _Read(lambda: 1.0, None)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        if Scale(float(given)).problem:
            raise SpectrumError(f"loss_scale must be a positive number, not {given!r}.")
        return _Read(lambda: given, None)
    if hasattr(given, "loss_scale"):  # before callables, because a TrainStep is one
        return _Read(partial(getattr, given, "loss_scale"), optimizer)
    if callable(given):
        return _Read(given, optimizer)
    raise SpectrumError(
        f"loss_scale is a torch.amp.GradScaler, an object with an attribute loss_scale (such as a "
        f"floatscope.TrainStep), a number or a function that returns one, not "
        f"{type(given).__name__}."
    )


class _Read:
    """A number that is asked for. A fall between passes means that a step was withheld."""

    def __init__(self, read: Callable[[], Any], optimizer: Optimizer | None) -> None:
        self._read = read
        self._can_fall = optimizer is not None

    def read(self) -> Scale:
        return Scale(float(self._read()))

    def mark(self) -> float:
        return float(self._read()) if self._can_fall else 0.0

    def was_withheld(self, mark: float) -> bool:
        return self._can_fall and float(self._read()) < mark


class _FromScaler:
    """A `GradScaler`. What it did with the optimizer it notes itself, without asking the device."""

    def __init__(self, scaler: GradScaler, optimizer: Optimizer | None) -> None:
        self._scaler, self._optimizer = scaler, optimizer
        factors = (
            scaler.get_growth_factor(),
            scaler.get_backoff_factor(),
            scaler.get_scale(),
        )
        self._keeps_powers = all(is_power(factor) for factor in factors)

    def read(self) -> Scale:
        held = self._scaler._scale
        if held is not None and held.device.type != "cpu" and self._keeps_powers:
            return Scale(held.clone())
        return Scale(float(self._scaler.get_scale()))

    def mark(self) -> dict[int, Any] | None:
        """The scaler's notes on this iteration; None if the optimizer's step is behind it."""
        notes = self._scaler._per_optimizer_states  # another dictionary after each update()
        return None if self._has_stepped(notes) else notes

    def was_withheld(self, mark: dict[int, Any] | None) -> bool:
        if mark is None:
            return False
        if self._optimizer is None:
            return mark is not self._scaler._per_optimizer_states
        return self._has_stepped(mark)

    def _has_stepped(self, notes: dict[int, Any]) -> bool:
        """Whether `scaler.step(optimizer)` has been called, with or without effect."""
        state = notes.get(id(self._optimizer))
        return state is not None and state["stage"] is OptState.STEPPED


def is_power(value: float) -> bool:
    """Whether it is a power of two."""
    return math.isfinite(value) and math.frexp(value)[0] == 0.5
