"""Products of weights with quantized operands: forward, input gradient and weight gradient.

A product that the executor meets is one of the three if one of its operands carries a mark (see
`roles.py`). Both operands are quantized along the dimension that the product contracts, multiplied
with fp32 accumulation, scaled, and rounded once to the format between products. All other products,
attention's among them, are left to it; a product of a weight that cannot be taken apart is refused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from floatscope.errors import RecipeError
from floatscope.recipes import convolution, native_fp8
from floatscope.recipes.formats_of import Operand, Operands, ProductName, RoleName
from floatscope.recipes.marks import memory_of, version_of
from floatscope.recipes.multiply import multiply
from floatscope.recipes.operations import Kind, is_attention, tensors_in
from floatscope.recipes.passes import is_backward
from floatscope.recipes.quantize import Quantized, carrier_of, is_uneven, quantize
from floatscope.recipes.recent import Copies, Recent, is_repeatable, may_come_again
from floatscope.recipes.report import Memory, Report
from floatscope.recipes.roles import Roles, Weight
from floatscope.recipes.rooms import Rooms
from floatscope.recipes.which import Found, in_backward, in_forward
from floatscope.rounding import StochasticKey
from floatscope.rounding.hadamard import Hadamard, turned

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
_OF_VECTORS = ("MvBackward0", "AddmvBackward0")
_SCRIPTED = "DifferentiableGraphBackward"
_FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class QuantizedProducts:
    """Computes the products of one model's weights as `operands` says.

    Args:
        operands: how each operand is quantized.
        roles: the model's marks.
        memory: what is remembered from step to step.
        report: has what is converted and left added to it.
        by_units: whether the device's fp8 units multiply what they can (`native_fp8.py`).
    """

    def __init__(
        self,
        operands: Operands,
        roles: Roles,
        memory: Memory,
        report: Report,
        *,
        by_units: bool = False,
    ) -> None:
        self.operands, self.roles, self.memory = operands, roles, memory
        self.report, self.by_units = report, by_units
        self._weights: dict[tuple[Any, ...], tuple[int, Quantized]] = {}
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._rooms = Rooms()
        self._copies = Copies()
        self._recent: defaultdict[tuple[str, str], Recent] = defaultdict(
            partial(Recent, self._copies)
        )

    def begin(self) -> None:
        """Refuse an autograd node whose products could not be told apart.

        Raises:
            RecipeError: it is to be differentiated itself, or is TorchScript's.
        """
        if torch.is_grad_enabled():
            raise RecipeError(
                "a gradient of a gradient was asked for (create_graph=True), and products with "
                "quantized operands are not differentiable twice."
            )
        node = torch._C._current_autograd_node()
        if _SCRIPTED in node.name() and self.roles.behind(node):
            raise RecipeError(
                "a scripted function multiplies with a weight, and TorchScript differentiates it "
                "in one piece, which the recipe does not see into. Use the plain function."
            )

    def take(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kind: Kind) -> Any:
        """The result of an operation that is a product of a weight; else NotImplemented."""
        if func in CASTS:
            result = func(*args, **kwargs)
            self.roles.follow(args[0], result)
            self._copies.follow(args[0], result)
            return result
        if func is aten.convolution.default:
            return self._convolution(args)
        if func is aten.convolution_backward.default:
            return self._convolution_backward(args)
        if func in _MATRIX:
            return self._matrix(func, args, kwargs)
        if func is aten.mul.Tensor and _is_outer():
            column, row = args
            result = self._matrix(aten.mm.default, (column, row[None]), {})
            return result if result is not NotImplemented else func(*args)
        if kind in ("product", "unreachable"):
            self._leave(func, args)
        elif kind == "foreign":
            for weight in self._weights_in(args):
                self.report.kept.setdefault(weight.name, f"{func} is another library's")
        return NotImplemented

    def _matrix(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first, second = _MATRIX[func]
        a, b = args[first], args[second]
        found = in_backward(self.roles, a, b) if is_backward() else in_forward(self.roles, a, b)
        if found is None:
            self.report.without_weight += 1
            return NotImplemented
        if found.weight.kept:
            self.report.kept.setdefault(found.weight.name, found.weight.kept)
            return NotImplemented
        is_vector = b.ndim == 1
        right = b[:, None] if is_vector else b
        added = _added(args[:first], kwargs, is_vector)
        result = self._product(found, a, right, added)
        return result[:, 0] if is_vector else result

    def _product(
        self,
        found: Found,
        left: Tensor,
        right: Tensor,
        added: tuple[Tensor, float, float] | None = None,
    ) -> Tensor:
        product, weight, role_left, role_right = found
        if forward_ad._current_level >= 0:
            raise RecipeError(
                "a derivative was asked for in forward mode (jvp), and products with quantized "
                "operands have none."
            )
        for operand in (left, right):
            if operand.dtype not in _FLOATING or operand.layout is not torch.strided:
                raise RecipeError(
                    f"an operand of a product of {weight.name} is {operand.dtype}, "
                    f"{operand.layout}, and operands of a format of their own are dense and "
                    "floating. Convert it, or keep the weight out of the recipe by name."
                )
        self.report.converted[weight.name, product] += 1
        one, other = (self.operands.of(product, role) for role in (role_left, role_right))
        if is_uneven(one, left.shape[-2:]) or is_uneven(other, right.mT.shape[-2:]):
            self.report.padded[weight.name, product] += 1
        a = self._quantized(left, product, role_left, weight, -1)
        b = self._quantized(right, product, role_right, weight, -2)
        accumulator, dtype = self.operands.accumulator, left.dtype
        if self.by_units:
            why = native_fp8.why_left(a, b, (one, other), accumulator, dtype, added)
            if not why:
                self.report.native[weight.name, product] += 1
                return native_fp8.multiply_by_units(a, b, (one, other), dtype, added)
            self.report.not_native[why] += 1
        return multiply(a, b, accumulator, dtype, added)

    def _convolution(self, args: tuple[Any, ...]) -> Any:
        x, weight, bias, stride, padding, dilation, transposed, _, groups = args
        known = self._convertible(weight, transposed, groups)
        if known is None:
            return NotImplemented
        self.roles.enter(x, known)

        def product(a: Tensor, b: Tensor, role_a: Any, role_b: Any) -> Tensor:
            return self._product(Found("forward", known, role_a, role_b), a, b)

        shape = convolution.shape_of(weight, stride, padding, dilation)
        return convolution.forward(x, self.roles.unrounded(weight), bias, shape, product)

    def _convolution_backward(self, args: tuple[Any, ...]) -> Any:
        gradient, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = args
        if self.roles.weight(weight) is None:
            for moved in self.roles.behind(torch._C._current_autograd_node()):
                self.roles.recovered(weight, moved)
        known = self._convertible(weight, transposed, groups)
        if known is None:
            return NotImplemented

        def product(a: Tensor, b: Tensor, role_a: Any, role_b: Any) -> Tensor:
            kind: ProductName = "input_gradient" if role_b == "weight" else "weight_gradient"
            return self._product(Found(kind, known, role_a, role_b), a, b)

        shape = convolution.shape_of(weight, stride, padding, dilation)
        source = self.roles.unrounded(weight)
        return convolution.backward(gradient, x, source, shape, wanted, product)

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

    def _leave(self, func: Any, args: tuple[Any, ...]) -> None:
        """Take note of a product that is not taken apart, and refuse one of a weight."""
        weights = [] if is_attention(func) else self._weights_in(args)
        for weight in weights:
            if not weight.kept:
                raise RecipeError(
                    f"{func} multiplies {weight.name} in one piece, so its operands cannot be "
                    "given a format of their own. Write it with matmul or F.linear, or keep the "
                    "weight out of the recipe by name."
                )
            self.report.kept[weight.name] = weight.kept
        if not weights:
            self.report.without_weight += 1

    def _weights_in(self, args: tuple[Any, ...]) -> list[Weight]:
        found = (self.roles.weight(t) for t in tensors_in(args))
        return [weight for weight in found if weight is not None]

    def _quantized(
        self, x: Tensor, product: ProductName, role: RoleName, weight: Weight, axis: int
    ) -> Quantized:
        source = self.roles.unrounded(x) if role == "weight" else x
        parameter = weight.parameter
        if role != "weight" or parameter is None or memory_of(source) != memory_of(parameter):
            return self._made(source, product, role, weight, axis)
        # A parameter is quantized once a version.
        place = (weight, axis, product, source.shape, source.stride(), source.storage_offset())
        held = self._weights.get(place)
        if held is None or held[0] != version_of(parameter):
            held = version_of(parameter), self._made(source, product, role, weight, axis)
            self._weights[place] = held
        return held[1]

    def _made(
        self, x: Tensor, product: ProductName, role: RoleName, weight: Weight, axis: int
    ) -> Quantized:
        operand = self.operands.of(product, role)
        if role == "weight":
            return self._quantize(x, operand, product, role, weight, axis, None)
        purpose = (role, "" if role == "gradient" else product)
        recent = self._recent[purpose]
        is_known = is_repeatable(operand) and may_come_again(x, role)
        quantized = recent.find(x, operand, axis) if is_known else None
        if quantized is None:
            recent.forget()
            room = self._rooms.like(x, carrier_of(operand), purpose)
            quantized = self._quantize(x, operand, product, role, weight, axis, room)
            if is_known:
                recent.keep(x, operand, axis, quantized)
        return quantized

    def _quantize(
        self,
        x: Tensor,
        operand: Operand,
        product: ProductName,
        role: RoleName,
        weight: Weight,
        axis: int,
        room: Tensor | None,
    ) -> Quantized:
        x = x.detach()  # what is kept must not keep the graph
        transform = Hadamard(operand.hadamard, self.memory.seed) if operand.hadamard else None
        amax = None
        if operand.history and weight.parameter is not None:
            if transform is not None:
                x, transform = turned(x, transform, axis), None
            own = float(x.abs().amax()) if x.numel() else 0.0
            amax = self.memory.amax(f"{weight.name}/{product}/{role}", own, operand.history)
        key = self._key(x, operand, product, role, weight)
        return quantize(x, operand, axis, key, amax, room, transform)

    def _key(
        self, x: Tensor, operand: Operand, product: ProductName, role: RoleName, weight: Weight
    ) -> int:
        if operand.rounding != "stochastic":
            return 0
        if product == "forward":
            call = _fingerprint(x)  # a recomputed product has the bits of the first
        else:
            call = self._calls[weight.name, product, role]
            self._calls[weight.name, product, role] += 1
        return StochasticKey(
            seed=self.memory.seed,
            step=self.memory.step,
            micro_step=self.memory.micro_step,
            module=weight.name,
            role=f"{product}/{role}",
            call=call,
        ).value()


def _is_outer() -> bool:
    """Whether this is the outer product that a matrix times a vector has as a gradient."""
    if torch._C._current_graph_task_id() == -1:
        return False
    node = torch._C._current_autograd_node()
    return node is not None and node.name() in _OF_VECTORS and is_backward()


def _fingerprint(x: Tensor) -> int:
    """A number that follows from the bits of a tensor."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return int(x.contiguous().view(bits).sum(dtype=torch.int64))


def _added(
    before: tuple[Any, ...], kwargs: dict[str, Any], is_vector: bool
) -> tuple[Tensor, float, float] | None:
    """What addmm and its like add: (tensor, beta, alpha); a vector as a column."""
    if not before:
        return None
    tensor = before[0][:, None] if is_vector and before[0].ndim else before[0]
    return tensor, float(kwargs.get("beta", 1)), float(kwargs.get("alpha", 1))
