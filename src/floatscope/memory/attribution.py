"""Which module and which Torch function is at work, in forward and in backward.

In forward, hooks on all modules keep the path, and a `TorchFunctionMode` the function that the
model's code called. In backward there is neither; but autograd numbers its nodes as they are made,
so the number of the node that runs tells which call made it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr as next_node_number
from torch.overrides import TorchFunctionMode

from floatscope.memory.tape import Place

# What the autograd engine runs inside; it is no operation of its own.
_BACKWARD = frozenset({"backward", "grad"})


class Attribution(TorchFunctionMode):
    """Context manager that knows the present `place`.

    Only the thread that enters it is followed. On leaving, the model has no hooks of it left.

    Args:
        on_output: called with what the watched model returns.
    """

    def __init__(self, on_output: Callable[[Any], None]) -> None:
        super().__init__()
        self.outside = ""
        """Where things happen when no module runs."""
        self._on_output = on_output
        self._names: dict[int, str] = {}
        self._path: list[tuple[int, str]] = []
        self._function = ""
        self._starts: list[int] = []
        self._places: list[Place] = []
        self._hooks: list[Any] = []

    def watch(self, model: nn.Module) -> None:
        """Name modules by their paths in `model`; a shared module has its first."""
        for name, module in model.named_modules():
            self._names[id(module)] = name
            self._hooks += [
                module.register_forward_pre_hook(self._enter_module),
                module.register_forward_hook(self._leave_module, always_call=True),
            ]

    @property
    def place(self) -> Place:
        """Where the present operation belongs."""
        node = torch._C._current_autograd_node()
        if node is None or self._function or self._path:
            return Place(self._module, self._function)
        where = bisect_right(self._starts, node._sequence_nr()) - 1
        name = node.name()
        if where < 0 or name.endswith("AccumulateGrad"):  # its number is the largest of all
            return Place("(gradients)", "accumulate")
        module, function = self._places[where]
        return Place(module, function or name.removesuffix("0").removesuffix("Backward"))

    @property
    def in_backward(self) -> bool:
        return torch._C._current_autograd_node() is not None

    @property
    def _module(self) -> str:
        return self._path[-1][1] if self._path else self.outside

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__" or name in _BACKWARD:
            return func(*args, **(kwargs or {}))
        outer, self._function = self._function, outer_name(name)
        self._mark()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._function = outer
            self._mark()

    def _mark(self) -> None:
        """From the next autograd node on, nodes belong to the present place."""
        number = next_node_number()
        if self._starts and self._starts[-1] >= number:
            self._places[-1] = Place(self._module, self._function)
        else:
            self._starts.append(number)
            self._places.append(Place(self._module, self._function))

    def _enter_module(self, module: nn.Module, _inputs: Any) -> None:
        self._path.append((id(module), self._names[id(module)]))
        self._mark()

    def _leave_module(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        # Modules that an exception left out of turn are dropped with their caller.
        while self._path and self._path.pop()[0] != id(module):
            pass
        self._mark()
        if not self._path and self._names[id(module)] == "":
            self._on_output(output)

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._path = [], []


def outer_name(function: str) -> str:
    """The plain name of a Torch function: "__rmul__" and "mul_" are "mul"."""
    name = function.strip("_") or function
    return name[1:] if function.startswith("__r") and name[1:] in _REFLECTED else name


_REFLECTED = frozenset({"add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"})
