"""What kind of operation an `aten` operation is, to one who looks for products."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from floatscope.recipes.products import HANDLERS

aten = torch.ops.aten

# Operations that multiply but that Torch's own list of products, the flop counter's, leaves out.
_MORE_PRODUCTS = frozenset(
    {
        aten.mv, aten.addmv, aten.dot, aten.vdot, aten.addbmm, aten.addr, aten.addr_,
        aten.mkldnn_rnn_layer, aten.mkldnn_rnn_layer_backward, aten._thnn_fused_lstm_cell,
        aten._native_multi_head_attention, aten._transformer_encoder_layer_fwd,
        aten._triton_multi_head_attention, aten._triton_scaled_dot_attention,
        aten._trilinear, aten._cdist_forward, aten._cdist_backward, aten.linear_backward,
        aten.mkldnn_linear, aten._addmm_activation, aten._grouped_mm, aten._int_mm,
        aten.conv_tbc, aten.conv_tbc_backward, aten._sparse_addmm, aten._scaled_grouped_mm,
    }
)  # fmt: skip

_KNOWN = frozenset(
    ("aten", "prim", "prims", "c10d", "_c10d_functional", "_c10d_functional_autograd", "profiler")
)
"""Namespaces whose products are listed, or that have none."""

_ATTENTION = ("_scaled_dot_product", "_flash_attention", "_efficient_attention", "_cudnn_attention")

FUNCTIONAL = {
    aten.addmm_.default: aten.addmm.default,
    aten.baddbmm_.default: aten.baddbmm.default,
    aten.addmv_.default: aten.addmv.default,
    aten.addbmm_.default: aten.addbmm.default,
    aten.mm.out: aten.mm.default,
    aten.bmm.out: aten.bmm.default,
    aten.mv.out: aten.mv.default,
    aten.dot.out: aten.dot.default,
    aten.vdot.out: aten.vdot.default,
    aten.addmm.out: aten.addmm.default,
    aten.baddbmm.out: aten.baddbmm.default,
    aten.addmv.out: aten.addmv.default,
    aten.addbmm.out: aten.addbmm.default,
}
"""Forms that write into a tensor given to them, and the form that returns a new one."""

Kind = Literal["product", "composite", "unreachable", "foreign", "other"]


@functools.cache
def kind_of(func: Any) -> Kind:
    """What an operation is: a product with a handler, one without, or none.

    "composite": made of others, and arrives whole only under inference mode; what also has a kernel
    of its own, silu's gradient for one, is not taken apart, for each part would round. "foreign":
    of another library, which may multiply.
    """
    if func in HANDLERS:
        return "product"
    if func.namespace == "prim":  # asks about a tensor, under fake tensors
        return "other"
    has_kernel = functools.partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
    if has_kernel("CompositeImplicitAutograd") and not has_kernel("CPU"):
        return "composite"
    packet = func.overloadpacket
    if packet in flop_registry or packet in _MORE_PRODUCTS:
        return "unreachable"
    return "other" if func.namespace in _KNOWN else "foreign"


@functools.cache
def is_attention(func: Any) -> bool:
    """Whether this is the product of queries, keys and values in one operation."""
    return func.overloadpacket.__name__.startswith(_ATTENTION)


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dictionaries."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        yield from tensors_in(tuple(tree.values()))
