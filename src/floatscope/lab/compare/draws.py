"""The same random numbers in every precision.

From one seed Torch draws other numbers for fp64 tensors than for fp32 ones (`randn`, `rand`,
`bernoulli` of a tensor; the masks of dropout are the same on a CPU), and after the first such draw
all others differ as well. A gradient behind other noise is another gradient. So whatever a model
draws is drawn in fp32 and then converted to what was asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from floatscope.errors import StudyError

DRAWN = torch.float32
WHOLE_NUMBERS = (torch.ops.aten.randint, torch.ops.aten.randperm)


class SameDraws(TorchDispatchMode):
    """Draws in fp32, forward and in what checkpoints recompute; refuses what it cannot.

    `drew` has the names of the operations that drew.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drew: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            raise StudyError(
                f"the model draws random numbers by {func.name()} from a generator of its own, "
                "which is not the same in each pass. Draw before the model is called, or from "
                "Torch's own generator."
            )
        before = _generators()
        result, is_same = _draw(func, args, kwargs)
        if not all(map(torch.equal, before, _generators())):
            self.drew.add(func.name())
            if not is_same:
                raise StudyError(
                    f"the model draws random numbers by {func.name()}, which differ from precision "
                    "to precision, so its gradients cannot be compared. Switch it off, with "
                    "model.eval() for one, or draw before the model is called."
                )
        return result


def _draw(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """What an operation draws, and whether it is the same for every dtype."""
    given = args[0] if args and isinstance(args[0], Tensor) else None
    if func._schema.name.endswith("_") and given is not None:  # such as bernoulli_
        if not given.is_floating_point():
            return func(*args, **kwargs), True
        return given.copy_(func(torch.empty_like(given, dtype=DRAWN), *args[1:], **kwargs)), True
    if func.overloadpacket is torch.ops.aten.bernoulli and given is not None:
        return func(given.to(DRAWN), *args[1:], **kwargs).to(given.dtype), True
    if any(argument.name == "dtype" for argument in func._schema.arguments):  # such as randn_like
        wanted = kwargs.get("dtype") or _default(func, given)
        if wanted.is_floating_point:
            return func(*args, **{**kwargs, "dtype": DRAWN}).to(wanted), True
        return func(*args, **kwargs), True
    return func(*args, **kwargs), False


def _default(func: Any, given: Tensor | None) -> torch.dtype:
    """The dtype of what is drawn where none is named."""
    if given is not None:
        return given.dtype
    return torch.int64 if func.overloadpacket in WHOLE_NUMBERS else torch.get_default_dtype()


def _generators() -> list[Tensor]:
    """The states of Torch's own generators."""
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_devices]
