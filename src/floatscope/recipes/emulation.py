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

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _push_mode,
)
from torch.utils.flop_counter import flop_registry

from floatscope.errors import RecipeError
from floatscope.recipes.products import HANDLERS
from floatscope.recipes.quantized import QuantizedProducts

aten = torch.ops.aten

# Operations that multiply but that Torch's own list of products, the flop counter's, leaves out.
_MORE_PRODUCTS = frozenset(
    {
        aten.mv, aten.addmv, aten.dot, aten.vdot, aten.addbmm, aten.addr,
        aten.mkldnn_rnn_layer, aten.mkldnn_rnn_layer_backward, aten._thnn_fused_lstm_cell,
        aten._native_multi_head_attention, aten._transformer_encoder_layer_fwd,
        aten._triton_multi_head_attention, aten._triton_scaled_dot_attention,
        aten._trilinear, aten._cdist_forward, aten._cdist_backward, aten.linear_backward,
        aten.mkldnn_linear, aten._addmm_activation, aten._grouped_mm, aten._int_mm,
    }
)  # fmt: skip


class Executor(TorchDispatchMode):
    """Runs the products on operands of `dtype` through their handlers, and refuses the rest."""

    def __init__(
        self, dtype: torch.dtype, quantized: QuantizedProducts | None, *, emulates: bool
    ) -> None:
        super().__init__()
        self.dtype, self.quantized, self.emulates = dtype, quantized, emulates
        self.num_products = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        kind = _kind(func)
        if self.quantized is not None and kind != "composite":
            result = self.quantized.take(func, args, kwargs)
            if result is not NotImplemented:
                return result
        is_ours = any(t.dtype is self.dtype for t in _tensors((args, kwargs)))
        if kind == "other" or not is_ours or not (self.emulates or kind == "composite"):
            return func(*args, **kwargs)
        if kind == "composite":
            with self:
                return func.decompose(*args, **kwargs)
        if kind == "unreachable":
            shapes = ", ".join(f"{list(t.shape)} {t.dtype}" for t in _tensors((args, kwargs)))
            raise RecipeError(
                f"the emulated backend cannot compute {func} on {shapes}, and running it natively "
                "would not be what the recipe says. Choose the native backend, or keep this module "
                "in fp32."
            )
        self.num_products += 1
        return HANDLERS[func](func, args, kwargs, self.dtype)


class Marker(TorchFunctionMode):
    """Marks every autograd node created inside it, so that its backward runs in `executor`."""

    def __init__(self, executor: Executor) -> None:
        super().__init__()
        self.executor = executor

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.executor.quantized is None:
            result = func(*args, **kwargs)
        else:
            if func is F.linear and len(args) > 1 and not args[1].is_leaf:
                self.executor.quantized.roles.derive(args[1])
            with _taken_apart(func):
                result = func(*args, **kwargs)
        if torch.is_grad_enabled():
            self.mark(result)
        return result

    def mark(self, outputs: Any) -> None:
        """Mark the graph behind `outputs`, down to nodes that are marked already.

        Leaves are left alone: an AccumulateGrad node outlives the step and multiplies nothing.
        """
        stack: list[Any] = [output.grad_fn for output in _tensors(outputs)]
        while stack:
            node = stack.pop()
            if node is None or node.metadata.get("floatscope") is self:
                continue
            if node.name().endswith("AccumulateGrad"):
                continue
            node.metadata["floatscope"] = self
            node.register_prehook(self._switch_on)
            stack.extend(following for following, _ in node.next_functions)

    def _switch_on(self, gradients: Any) -> None:
        quantized = self.executor.quantized
        if quantized is not None:
            quantized.roles.flow(gradients)
        if quantized is not None and torch.is_grad_enabled():
            raise RecipeError(
                "a gradient of a gradient was asked for (create_graph=True), and products with "
                "quantized operands are not differentiable twice."
            )
        if self.executor not in _get_current_dispatch_mode_stack():
            _push_mode(self.executor)


_FUSED = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))


@contextmanager
def _taken_apart(func: Any) -> Iterator[None]:
    """Fused recurrent calls in their single products, which oneDNN would hide."""
    fused = getattr(func, "__name__", "") in _FUSED and torch._C._get_mkldnn_enabled()
    if fused:
        torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        if fused:
            torch._C._set_mkldnn_enabled(True)


class Emulation:
    """Context manager: inside it, products on `dtype` operands are computed in fp32.

    Reusable and re-entrant. `num_products` counts the products computed so far, forward and
    backward.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        quantized: QuantizedProducts | None = None,
        *,
        emulates: bool = True,
    ) -> None:
        self._executor = Executor(dtype, quantized, emulates=emulates)
        self._marker = Marker(self._executor)

    @property
    def num_products(self) -> int:
        return self._executor.num_products

    def mark(self, outputs: Any) -> None:
        """Mark the graph behind `outputs`, where a custom autograd function may have made it."""
        self._marker.mark(outputs)

    def __enter__(self) -> Emulation:
        self._executor.__enter__()
        self._marker.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._marker.__exit__(kind, error, trace)
        self._executor.__exit__(kind, error, trace)


@functools.cache
def _kind(func: Any) -> Literal["product", "composite", "unreachable", "other"]:
    if func in HANDLERS:
        return "product"
    if func.namespace == "prim":  # asks about a tensor, under fake tensors
        return "other"
    # Under inference mode composite operations such as aten.linear arrive whole.
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return "composite"
    packet = func.overloadpacket
    return "unreachable" if packet in flop_registry or packet in _MORE_PRODUCTS else "other"


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dictionaries."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        yield from _tensors(tuple(tree.values()))
