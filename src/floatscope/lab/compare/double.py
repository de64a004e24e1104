"""The reference: what a model computes in fp64, with the same weights, batch and random numbers.

Weights and buffers are converted, which is exact. What else is fp32 must follow: inputs that the
model or its loss function holds on to, numbers it makes by itself, and what it converts to fp32
or 16 bits in between (the norms of most models of Hugging Face do). A dispatch mode, below autograd
and on in backward too, widens operands that meet fp64 ones and turns each conversion into one to
fp64; hooks widen what modules are called with, because some look at its dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from floatscope.errors import StudyError
from floatscope.lab.unchanged import on_copies


@contextmanager
def in_double(model: nn.Module) -> Iterator[None]:
    """Inside, `model` computes in fp64, forward and backward; afterwards it is as it was."""
    hooks = [m.register_forward_pre_hook(_widen_inputs, with_kwargs=True) for m in model.modules()]
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with on_copies(model, torch.float64), _InDouble():
            yield
    finally:
        torch.set_default_dtype(default)
        for hook in hooks:
            hook.remove()


class _InDouble(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given: Any = tree_map(_wide_dtype, (args, kwargs or {}))
        operands = [x for x in tree_leaves(given) if isinstance(x, Tensor)]
        if any(map(_is_narrow, operands)) and any(x.dtype is torch.float64 for x in operands):
            _check_written(func, *given)
            given = tree_map(_widened, given)
        return func(*given[0], **given[1])


def _widen_inputs(_module: nn.Module, args: Any, kwargs: Any) -> Any:
    return tree_map(_widened, (args, kwargs))


def _is_narrow(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64


def _widened(x: Any) -> Any:
    return x.double() if _is_narrow(x) else x


def _wide_dtype(x: Any) -> Any:
    return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x


def _check_written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse to write fp64 numbers into a tensor that cannot hold them."""
    for i, argument in enumerate(func._schema.arguments):
        value: Any = args[i] if i < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written and _is_narrow(value):
            raise StudyError(
                f"no fp64 reference: {func.name()} writes into a tensor of {value.dtype} that is "
                "neither a parameter, a buffer nor made in the forward pass. Make it a buffer."
            )
