"""Several optimizers as one, such as Muon for matrices and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from floatscope.errors import RecipeError


class Together:
    """Optimizers that step together. What they hold is seen as if one held it.

    Args:
        optimizers: in the order in which they step.

    Raises:
        RecipeError: there is none, one is no optimizer, or two hold the same parameter, which would
            be unscaled and updated twice.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = tuple(optimizers)
        if not self.optimizers:
            raise RecipeError("there is no optimizer.")
        holder: dict[int, int] = {}
        for i, optimizer in enumerate(self.optimizers):
            if not isinstance(optimizer, Optimizer):
                raise RecipeError(f"{type(optimizer).__name__} is no torch.optim optimizer.")
            for parameter in held_by(optimizer):
                if holder.setdefault(id(parameter), i) != i:
                    raise RecipeError(
                        f"two optimizers hold the same parameter, of shape "
                        f"{tuple(parameter.shape)}; each parameter is updated by one."
                    )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of all, one after another."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> _State:
        """States by parameter."""
        return _State(self)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of everything that is held."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """Step each."""
        for optimizer in self.optimizers:
            optimizer.step()


class _State:
    """Looks up anew which optimizer holds a parameter, since groups may be added."""

    def __init__(self, together: Together) -> None:
        self._together = together

    def get(self, parameter: Tensor, default: Any = None) -> Any:
        return optimizer_of(self._together, parameter).state.get(parameter, default)

    def __getitem__(self, parameter: Tensor) -> Any:
        return optimizer_of(self._together, parameter).state[parameter]

    def __len__(self) -> int:
        return sum(len(optimizer.state) for optimizer in self._together.optimizers)


OneOrTogether = Optimizer | Together
Optimizers = Optimizer | Sequence[Optimizer]


def as_one(optimizers: Optimizers | Together) -> OneOrTogether:
    """An optimizer as it is, several together.

    Raises:
        RecipeError: see `Together`.
    """
    if isinstance(optimizers, (Optimizer, Together)):
        return optimizers
    if not isinstance(optimizers, Sequence):
        raise RecipeError(f"{type(optimizers).__name__} is no torch.optim optimizer.")
    return optimizers[0] if len(optimizers) == 1 else Together(optimizers)


def each_of(optimizer: OneOrTogether) -> tuple[Optimizer, ...]:
    """The optimizers, one by one."""
    return optimizer.optimizers if isinstance(optimizer, Together) else (optimizer,)


def held_by(optimizer: OneOrTogether) -> Iterator[nn.Parameter]:
    """Parameters, group by group."""
    for group in optimizer.param_groups:
        yield from group["params"]


def optimizer_of(optimizer: OneOrTogether, parameter: Tensor) -> Optimizer:
    """The optimizer that holds a parameter; the first if none does."""
    for one in each_of(optimizer):
        if any(parameter is held for held in held_by(one)):
            return one
    return each_of(optimizer)[0]
