"""Which of a weight's three products an operation computes: by the marks of its operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from floatscope.errors import RecipeError
from floatscope.recipes.formats_of import ProductName, RoleName
from floatscope.recipes.passes import flow_of
from floatscope.recipes.roles import Roles, Weight

_OF_TWO = ("MmBackward0", "AddmmBackward0", "BmmBackward0", "BaddbmmBackward0")
"""Autograd nodes of a product whose operands are the last two of its inputs, in this order."""


class Found(NamedTuple):
    """Which of the three a product is."""

    product: ProductName
    weight: Weight
    left: RoleName
    right: RoleName


def in_forward(roles: Roles, a: Tensor, b: Tensor) -> Found | None:
    """What a @ b is in forward; None without a weight. Marks the activation.

    Of two weights the right one is it, as in F.linear of a learned query.
    """
    weight_a, weight_b = roles.weight(a), roles.weight(b)
    weight = weight_b or weight_a
    if weight is None:
        return None
    roles.enter(a if weight_b else b, weight)
    if weight_a is weight_b:
        weight = _squared(weight)
    if weight_b:
        return Found("forward", weight, "activation", "weight")
    return Found("forward", weight, "weight", "activation")


def in_backward(roles: Roles, a: Tensor, b: Tensor) -> Found | None:
    """What a @ b is in the autograd node under way; None without a weight.

    Raises:
        RecipeError: what was saved in forward comes back as another tensor, and cannot be told.
    """
    node: Any = torch._C._current_autograd_node()
    behind = roles.behind(node)
    found = _by_marks(roles, a, b, behind)
    if found is None and behind:
        is_right = roles.weight_behind(node.next_functions[-1][0]) is behind[-1]
        found = _by_flow(roles, a, b, behind[-1], is_right=is_right)
    if found is not None and len(behind) > 1 and behind[0] is behind[1]:
        return found._replace(weight=_squared(found.weight))
    return found


def _by_marks(roles: Roles, a: Tensor, b: Tensor, behind: list[Weight]) -> Found | None:
    for operand, is_left in ((a, True), (b, False)):
        own = roles.weight(operand)
        entered = roles.entered(operand)
        multiplied = [w for w in behind if w in entered and w is not own]
        if multiplied:
            return _gradient(multiplied[0], "activation", is_left=is_left)
        if own is not None:
            return _gradient(own, "weight", is_left=is_left)
    return None


def _by_flow(roles: Roles, a: Tensor, b: Tensor, weight: Weight, *, is_right: bool) -> Found:
    """And if an operand was kept elsewhere meanwhile, and so carries no mark.

    What flows into the node has the rows of its left operand and the columns of its right one. The
    gradient of the left one sums over columns, that of the right one over rows.
    """
    flow_a, flow_b = flow_of(a), flow_of(b)
    flow = flow_a or flow_b
    sums_columns = (flow == "as it is") == bool(flow_a)
    operand, is_left = (b, False) if flow_a else (a, True)
    is_weight = sums_columns == is_right
    node: Any = torch._C._current_autograd_node()
    told = node.name() in _OF_TWO and flow in ("as it is", "transposed")
    if not weight.kept and not (told and (not is_weight or roles.recovered(operand, weight))):
        raise RecipeError(
            f"an operand of a gradient of {weight.name} is not the tensor that forward saved "
            "(torch.autograd.graph.saved_tensors_hooks?), so the recipe cannot tell which one it "
            "is. Let the hooks return clones, or keep the weight out by name."
        )
    return _gradient(weight, "weight" if is_weight else "activation", is_left=is_left)


def _gradient(weight: Weight, role: RoleName, *, is_left: bool) -> Found:
    """The product of an operand that is known and the output gradient."""
    product: ProductName = "input_gradient" if role == "weight" else "weight_gradient"
    if is_left:
        return Found(product, weight, role, "gradient")
    return Found(product, weight, "gradient", role)


def _squared(weight: Weight) -> Weight:
    return replace(weight, kept=weight.kept or "multiplied with itself")
