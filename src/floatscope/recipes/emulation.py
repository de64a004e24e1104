"""The emulation engine: 16-bit products computed in fp32 wherever the model makes them.

It has two parts that enter and leave together.

*Executor*, a `TorchDispatchMode`: sees every operation below autograd. A product on operands of
the emulated dtype goes to its handler in `products.py`; a product without a handler is refused with
a `RecipeError`, because running it natively would be slow or round differently, in silence; all
else passes through. Autocast, above it, decides what is cast, exactly as it does natively.

*Marker*, a `TorchFunctionMode`: sees every call that the model makes and marks the autograd nodes
the call created. A marked node switches the executor on when backward reaches it, so that
backward may run outside the context, and a block recomputed by activation checkpointing, of
either kind, is computed as it was the first time. Nothing needs to be switched off again: the
autograd engine restores the thread's modes after each node, also after an exception.

Costs: some 10 microseconds for each operation, and an fp32 copy of a product's operands while it
runs. The copies are not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.overrides import _push_mode as _push_function_mode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _push_mode,
)

from floatscope.errors import RecipeError
from floatscope.recipes import passes
from floatscope.recipes.operations import FUNCTIONAL, kind_of, tensors_in
from floatscope.recipes.products import HANDLERS
from floatscope.recipes.quantized import QuantizedProducts
from floatscope.recipes.report import Report

_MARK = "floatscope.marker"
_WITH_WEIGHT = frozenset(
    (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d)
)
"""Functions whose second argument is a weight."""


class Executor(TorchDispatchMode):
    """Runs the products on operands of `dtype` through their handlers, and refuses the rest."""

    supports_higher_order_operators = True

    def __init__(
        self,
        dtype: torch.dtype,
        report: Report,
        quantized: QuantizedProducts | None,
        emulates: bool,
    ) -> None:
        super().__init__()
        self.dtype, self.report, self.quantized, self.emulates = dtype, report, quantized, emulates

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunction():  # what is called in here is not the model's
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(func, torch._ops.HigherOrderOperator):
            raise RecipeError(
                f"{func} hides its products from the recipe. Use the plain function in its place."
            )
        if func in FUNCTIONAL:
            return self._written(func, args, kwargs)
        kind = kind_of(func)
        if kind == "composite":
            return self._decomposed(func, args, kwargs)
        if self.quantized is not None:
            result = self.quantized.take(func, args, kwargs, kind)
            if result is not NotImplemented:
                return result
        if kind == "other":
            return func(*args, **kwargs)
        dtypes = {t.dtype for t in tensors_in((args, kwargs))}
        if self.dtype not in dtypes or kind == "foreign":
            self.report.left[f"{func.overloadpacket} in {_said(dtypes)}"] += 1
            return func(*args, **kwargs)
        if not self.emulates:
            return func(*args, **kwargs)
        if kind == "unreachable":
            shapes = ", ".join(f"{list(t.shape)} {t.dtype}" for t in tensors_in((args, kwargs)))
            raise RecipeError(
                f"the emulated backend cannot compute {func} on {shapes}, and running it natively "
                "would not be what the recipe says. Choose the native backend, or keep this module "
                "in fp32."
            )
        self.report.emulated["backward" if passes.is_backward() else "forward"] += 1
        return HANDLERS[func](func, args, kwargs, self.dtype)

    def _decomposed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation made of others, which arrives whole under inference mode."""
        with self:
            result = func.decompose(*args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """A product that is written into a tensor of the model's."""
        target = kwargs["out"] if "out" in kwargs else args[0]
        rest = {name: value for name, value in kwargs.items() if name != "out"}
        with self:
            result = FUNCTIONAL[func](*args, **rest)
        if "out" in kwargs and target.shape != result.shape:
            target.resize_(result.shape)
        return target.copy_(result)


class Marker(TorchFunctionMode):
    """Marks every autograd node created inside it, so that its backward runs in `executor`."""

    def __init__(self, executor: Executor) -> None:
        super().__init__()
        self.executor = executor
        self.since = 0

    def __enter__(self) -> Marker:
        self.since = _get_sequence_nr()
        return super().__enter__()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.executor.quantized is not None and func in _WITH_WEIGHT:
            weight = args[1] if len(args) > 1 else kwargs.get("weight")
            if isinstance(weight, Tensor):
                self.executor.quantized.roles.derive(weight)
        if getattr(func, "__name__", "") in _FUSED:
            with _taken_apart():
                result = func(*args, **kwargs)
        else:
            result = func(*args, **kwargs)
        if torch.is_grad_enabled():
            self.mark(result)
        return result

    def mark(self, outputs: Any) -> None:
        """Mark the graph behind `outputs`, down to nodes that are marked already.

        So it ends at what an earlier context made. What was made before this one and in none is
        left alone, and so are leaves: an AccumulateGrad node outlives the step and multiplies
        nothing.
        """
        stack: list[Any] = [output.grad_fn for output in tensors_in(outputs)]
        while stack:
            node = stack.pop()
            if node is None or node.name().endswith("AccumulateGrad") or self._is_older(node):
                continue
            if _MARK in node.metadata:
                continue
            node.metadata[_MARK] = self
            node.register_prehook(self._switch_on)
            stack.extend(following for following, _ in node.next_functions)

    def _is_older(self, node: Any) -> bool:
        """Whether a node was made before the context was entered; threads count on their own."""
        in_backward = torch._C._current_graph_task_id() != -1
        return not in_backward and node._sequence_nr() < self.since

    def _switch_on(self, gradients: Any) -> None:
        passes.begin(gradients)
        if self.executor.quantized is not None:
            self.executor.quantized.begin()
        elif torch.is_grad_enabled():  # the gradient is differentiated again
            node = torch._C._current_autograd_node()
            node.register_hook(lambda inputs, _outputs: self.mark(inputs))
        if self.executor not in _get_current_dispatch_mode_stack():
            _push_mode(self.executor)
        if self not in _get_current_function_mode_stack():
            _push_function_mode(self)


_FUSED = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))


@contextmanager
def _taken_apart() -> Iterator[None]:
    """Fused recurrent calls in their single products, which oneDNN would hide."""
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


class Emulation:
    """Context manager: inside it, products on `dtype` operands are computed in fp32.

    Reusable and re-entrant.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        report: Report | None = None,
        quantized: QuantizedProducts | None = None,
        *,
        emulates: bool = True,
    ) -> None:
        self.report = report or Report()
        self._marker = Marker(Executor(dtype, self.report, quantized, emulates=emulates))

    @property
    def num_products(self) -> int:
        """16-bit products computed so far, forward and backward."""
        return self.report.emulated.total()

    def mark(self, outputs: Any) -> None:
        """Mark the graph behind `outputs`, where a custom autograd function may have made it."""
        self._marker.mark(outputs)

    def __enter__(self) -> Emulation:
        self._marker.executor.__enter__()
        self._marker.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._marker.__exit__(kind, error, trace)
        self._marker.executor.__exit__(kind, error, trace)


def _said(dtypes: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
