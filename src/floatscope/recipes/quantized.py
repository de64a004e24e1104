"""Products of weights with quantized operands: forward, input gradient and weight gradient.

A product that the executor meets is one of the three if one of its operands carries a mark (see
`roles.py`). Both operands are quantized along the dimension that the product contracts, multiplied
with fp32 accumulation, scaled, and rounded once to the format between products. All other products,
attention's among them, are left to it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from floatscope.errors import RecipeError
from floatscope.recipes import convolution
from floatscope.recipes.formats_of import Operand, Operands, ProductName, RoleName
from floatscope.recipes.multiply import multiply
from floatscope.recipes.quantize import Quantized, quantize, turned
from floatscope.recipes.roles import DERIVED, Roles, Weight
from floatscope.rounding import StochasticKey

aten = torch.ops.aten

_MATRIX = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.mv.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.addmv.default: (1, 2),
}
"""Where the operands of a product stand; what stands before them is added to it."""
CASTS = (aten._to_copy.default, aten.clone.default)


@dataclass
class Report:
    """What was converted, and what was left."""

    converted: Counter[tuple[str, ProductName]] = field(default_factory=Counter)
    """Products by weight and kind."""
    kept: dict[str, str] = field(default_factory=dict)
    """Weights whose products were left alone, and why."""
    without_weight: int = 0
    """Products of which no operand is a weight, such as attention's, in forward and backward."""


@dataclass
class Memory:
    """What quantization remembers from step to step."""

    seed: int = 0
    """Of stochastic rounding and of the Hadamard transform's signs."""
    step: int = 0
    largest: dict[str, list[float]] = field(default_factory=dict)
    """By operand, the largest magnitudes of the last steps, for delayed scaling."""


class QuantizedProducts:
    """Computes the products of one model's weights as `operands` says.

    Args:
        operands: how each operand is quantized.
        roles: the model's marks.
        memory: what is remembered from step to step.
    """

    def __init__(self, operands: Operands, roles: Roles, memory: Memory) -> None:
        self.operands, self.roles, self.memory = operands, roles, memory
        self.report = Report()
        self._weights: dict[tuple[Any, ...], tuple[int, Quantized]] = {}
        self._calls: Counter[tuple[str, str, str]] = Counter()

    def take(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operation that is a product of a weight; else NotImplemented."""
        if func in CASTS:
            result = func(*args, **kwargs)
            self.roles.follow(args[0], result)
            return result
        if func is aten.convolution.default:
            return self._convolution(args)
        if func is aten.convolution_backward.default:
            return self._convolution_backward(args)
        if func not in _MATRIX:
            return NotImplemented
        first, second = _MATRIX[func]
        a, b = args[first], args[second]
        found = self._kind(a, b)
        if found is None:
            return NotImplemented
        product, weight, role_a, role_b = found
        is_vector = b.ndim == 1
        right = b[:, None] if is_vector else b
        added = _added(args[:first], kwargs, is_vector)
        result = self._product(product, weight, (a, role_a), (right, role_b), added)
        return result[:, 0] if is_vector else result

    def _product(
        self,
        product: ProductName,
        weight: Weight,
        left: tuple[Tensor, RoleName],
        right: tuple[Tensor, RoleName],
        added: tuple[Tensor, float, float] | None = None,
    ) -> Tensor:
        self.report.converted[weight.name, product] += 1
        return multiply(
            self._quantized(left[0], product, left[1], weight, -1),
            self._quantized(right[0], product, right[1], weight, -2),
            self.operands.accumulator,
            left[0].dtype,
            added,
        )

    def _convolution(self, args: tuple[Any, ...]) -> Any:
        x, weight, bias, stride, padding, dilation, transposed, _, groups = args
        known = self._convertible(weight, transposed, groups)
        if known is None:
            return NotImplemented

        def product(a: Tensor, b: Tensor, role_a: Any, role_b: Any) -> Tensor:
            return self._product("forward", known, (a, role_a), (b, role_b))

        shape = convolution.shape_of(weight, stride, padding, dilation)
        return convolution.forward(x, weight, bias, shape, product)

    def _convolution_backward(self, args: tuple[Any, ...]) -> Any:
        gradient, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = args
        known = self._convertible(weight, transposed, groups)
        if known is None:
            return NotImplemented

        def product(a: Tensor, b: Tensor, role_a: Any, role_b: Any) -> Tensor:
            kind: ProductName = "input_gradient" if role_b == "weight" else "weight_gradient"
            return self._product(kind, known, (a, role_a), (b, role_b))

        shape = convolution.shape_of(weight, stride, padding, dilation)
        return convolution.backward(gradient, x, weight, shape, wanted, product)

    def _convertible(self, weight: Tensor, transposed: bool, groups: int) -> Weight | None:
        """The weight of a convolution that is converted; None, and noted why, if it is not."""
        known = self.roles.weight(weight)
        if known is None:
            self.report.without_weight += 1
            return None
        why = known.kept or convolution.why_not(weight, transposed, groups)
        if why:
            self.report.kept[known.name] = why
        return None if why else known

    def _kind(self, a: Tensor, b: Tensor) -> tuple[ProductName, Weight, RoleName, RoleName] | None:
        weight_a, weight_b = self.roles.weight(a), self.roles.weight(b)
        weight = weight_a or weight_b
        if _is_backward():
            return self._backward_kind(a, b, weight_a, weight_b)
        if weight is None or (weight_a and weight_b):
            self.report.without_weight += 1
            return None
        if weight.kept:
            self.report.kept[weight.name] = weight.kept
            return None
        self.roles.enter(b if weight_a else a, weight)
        if weight_a:
            return "forward", weight, "weight", "activation"
        return "forward", weight, "activation", "weight"

    def _backward_kind(
        self, a: Tensor, b: Tensor, weight_a: Weight | None, weight_b: Weight | None
    ) -> tuple[ProductName, Weight, RoleName, RoleName] | None:
        of_node = self._weight_of_node()
        weight = weight_a or weight_b
        if weight is not None and not weight.kept:
            if weight_a:
                return "input_gradient", weight, "weight", "gradient"
            return "input_gradient", weight, "gradient", "weight"
        if weight is not None or (of_node is not None and of_node.kept):
            return None
        entered_a, entered_b = self.roles.entered(a), self.roles.entered(b)
        entered = entered_a or entered_b
        if of_node is None and entered is not None and entered.name == DERIVED:
            of_node = entered
        if of_node is None:
            self.report.without_weight += 1
            return None
        # A saved tensor that was offloaded, or recomputed up to here, carries no mark.
        if entered is None and not (self.roles.flows(a) or self.roles.flows(b)):
            raise RecipeError(
                f"neither operand of the gradient of {of_node.name} is known from its forward "
                "product or flows into its backward, so the recipe cannot tell them apart."
            )
        if entered_a or (entered is None and self.roles.flows(b)):
            return "weight_gradient", of_node, "activation", "gradient"
        return "weight_gradient", of_node, "gradient", "activation"

    def _weight_of_node(self) -> Weight | None:
        """The weight that the autograd node under way multiplies with, by the graph behind it."""
        node = torch._C._current_autograd_node()
        for following, _ in node.next_functions if node is not None else ():
            while following is not None:
                if following.name().endswith("AccumulateGrad"):
                    weight = self.roles.weight(following.variable)  # type: ignore[attr-defined]
                    if weight is not None and weight.source.ndim > 1:
                        return weight
                    break
                ahead = following.next_functions
                following = ahead[0][0] if len(ahead) == 1 else None
        return None

    def _quantized(
        self, x: Tensor, product: ProductName, role: RoleName, weight: Weight, axis: int
    ) -> Quantized:
        if role != "weight":
            return self._made(x, product, role, weight, axis)
        # A weight is quantized from the parameter itself, once a version.
        source = self.roles.unrounded(x)
        place = (weight.name, axis, product, tuple(x.shape), x.stride())
        version = weight.source._version
        held = self._weights.get(place)
        if held is None or held[0] != version:
            held = version, self._made(source, product, role, weight, axis)
            self._weights[place] = held
        return held[1]

    def _made(
        self, x: Tensor, product: ProductName, role: RoleName, weight: Weight, axis: int
    ) -> Quantized:
        operand = self.operands.of(product, role)
        if operand.hadamard:
            x = turned(x, operand.hadamard, axis, self.memory.seed)
        amax = (
            self._amax(x, operand, f"{weight.name}/{product}/{role}") if operand.history else None
        )
        return quantize(x, operand, axis, self._key(operand, product, role, weight), amax)

    def _amax(self, x: Tensor, operand: Operand, name: str) -> float:
        """The largest magnitude of the last steps; of this one, if it is the first."""
        own = float(x.abs().amax()) if x.numel() else 0.0
        seen = self.memory.largest.setdefault(name, [])
        amax = max(seen, default=own)
        seen.append(own if math.isfinite(own) else amax)
        del seen[: -operand.history]
        return amax

    def _key(self, operand: Operand, product: ProductName, role: RoleName, weight: Weight) -> int:
        if operand.rounding != "stochastic":
            return 0
        call = self._calls[weight.name, product, role]
        self._calls[weight.name, product, role] += 1
        return StochasticKey(
            seed=self.memory.seed,
            step=self.memory.step,
            module=weight.name,
            role=f"{product}/{role}",
            call=call,
        ).value()


def _is_backward() -> bool:
    """Whether this operation differentiates; a block recomputed in backward does not."""
    return torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()


def _added(
    before: tuple[Any, ...], kwargs: dict[str, Any], is_vector: bool
) -> tuple[Tensor, float, float] | None:
    """What addmm and its like add: (tensor, beta, alpha); a vector as a column."""
    if not before:
        return None
    tensor = before[0][:, None] if is_vector and before[0].ndim else before[0]
    return tensor, float(kwargs.get("beta", 1)), float(kwargs.get("alpha", 1))
