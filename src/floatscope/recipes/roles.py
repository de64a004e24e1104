"""Which operand is what: seen below autograd, where a product's operands have no names.

Weights are known by their memory. The parameters of a model are marked when the recipe is entered,
and the mark follows casts (autocast's copies), clones and views. In forward, whatever is multiplied
by a weight is an activation, and is marked as such. In backward a product belongs to an autograd
node, and the graph behind the node leads to the weight that it multiplies: an operand that is this
weight says that the product makes the input gradient, one that it has multiplied says that it makes
the weight gradient; the other operand is the output gradient. A product without any such mark, such
as attention's, is none of the three.

Marks hold on to the storage they were put on without keeping its memory, so that none can be taken
over by a later tensor at the same address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from floatscope.errors import RecipeError
from floatscope.recipes.formats_of import Kept
from floatscope.recipes.keeping_out import kept_weights
from floatscope.recipes.marks import Marks, memory_of, version_of

DERIVED = "(derived)"
"""The name of a weight that is no parameter, but computed from some."""

_WEIGHT = "floatscope.weight"
_VIEWS = re.compile(
    r"(T|Transpose|Permute|View|UnsafeView|ReshapeAlias|Expand|Alias|ToCopy|Clone|Slice|Select|"
    r"Split|SplitWithSizes|Unbind|Squeeze|Unsqueeze|AsStrided|Detach)Backward\d+"
)
"""Autograd nodes of views, casts and clones: what a mark follows."""


@dataclass(frozen=True, eq=False)
class Weight:
    """What products multiply with, and train."""

    name: str
    parameter: Tensor | None
    """The parameter, without autograd; None if the weight is computed from some."""
    kept: str
    """Why its products are left alone; empty if they are not."""


@dataclass(frozen=True, eq=False)
class _Place:
    """Where a weight lies in a storage."""

    weight: Weight
    first: int
    last: int
    """Positions in the storage, both included."""
    source: Tensor | None = None
    """Its values before a cast; None if this is where they are."""
    shift: int = 0
    """From a position in this storage to that in the source's."""
    version: int = 0
    """Of the copy when it was made: what is changed later is no copy."""


class Roles:
    """The marks of one model.

    Raises:
        RecipeError: a parameter has no data yet.
    """

    def __init__(self, model: nn.Module, kept: Kept) -> None:
        self._places: Marks[_Place] = Marks()
        self._activations: Marks[Weight] = Marks()
        self._multiplied: set[Weight] = set()
        reasons = kept_weights(model, kept)
        for name, parameter in model.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise RecipeError(
                    f"the parameter {name} has no data yet; call the model once before it is "
                    "computed by a recipe."
                )
            reason = reasons.get(name, "" if parameter.ndim > 1 else "a vector")
            if memory_of(parameter) is not None:
                values = parameter.detach()
                self._place(values, Weight(name, values, reason))

    def _place(self, tensor: Tensor, weight: Weight, source: Tensor | None = None) -> None:
        """Mark a tensor as a weight; `source` has the same values, unrounded, and strides."""
        first = int(tensor.storage_offset())
        sides = zip(tensor.shape, tensor.stride(), strict=True)
        last = first + sum((n - 1) * stride for n, stride in sides)
        shift = 0 if source is None else int(source.storage_offset()) - first
        place = _Place(weight, first, last, source, shift, version_of(tensor))
        self._places.add(tensor, place)

    def _found(self, tensor: Tensor) -> _Place | None:
        places = self._places.of(tensor)
        offset = tensor.storage_offset() if places else 0
        return next((p for p in places if p.first <= offset <= p.last), None)

    def follow(self, given: Tensor, result: Tensor) -> None:
        """A cast or a clone: the result has the values that were given."""
        place = self._found(given)
        if place is None:
            return
        if place.weight.parameter is None:
            self._places.purge()  # the copy's mark will hold what it is a copy of
        source = self.unrounded(given)
        if source.dtype == result.dtype:
            self._place(result, place.weight)
        else:
            self._place_copy(result, place.weight, source)

    def _place_copy(self, tensor: Tensor, weight: Weight, source: Tensor) -> None:
        if source.stride() != tensor.stride():
            source = torch.empty_like(tensor, dtype=source.dtype).copy_(source)
        self._place(tensor, weight, source)

    def derive(self, tensor: Tensor) -> None:
        """Mark a weight that is computed from parameters, such as a normalized one."""
        if self.weight(tensor) is None and memory_of(tensor) is not None:
            weight = Weight(DERIVED, None, "")
            self._place(tensor.detach(), weight)
            if tensor.grad_fn is not None:
                node: Any = tensor.grad_fn
                node.metadata[_WEIGHT] = weight

    def weight(self, tensor: Tensor) -> Weight | None:
        """The weight in this memory, if there is one."""
        place = self._found(tensor)
        return None if place is None else place.weight

    def unrounded(self, tensor: Tensor) -> Tensor:
        """The same view of the weight itself, before any cast; the tensor if that is unknown."""
        place = self._found(tensor)
        if place is None or place.source is None or place.version != version_of(tensor):
            return tensor
        offset = tensor.storage_offset() + place.shift
        return place.source.as_strided(tensor.shape, tensor.stride(), offset)

    def enter(self, tensor: Tensor, weight: Weight) -> None:
        """Mark an activation that a weight has multiplied."""
        self._activations.add(tensor, weight)
        self._multiplied.add(weight)

    def entered(self, tensor: Tensor) -> list[Weight]:
        """The weights that have multiplied this activation."""
        return self._activations.of(tensor)

    def behind(self, node: Any) -> list[Weight]:
        """The weights that an autograd node multiplies with, by the graph behind its operands."""
        found = (self.weight_behind(following) for following, _ in node.next_functions)
        return [weight for weight in found if weight is not None and weight in self._multiplied]

    def weight_behind(self, node: Any) -> Weight | None:
        """The weight that an operand is, by the graph that made it: views and casts of one."""
        while node is not None:
            derived = node.metadata.get(_WEIGHT)
            if derived is not None:
                return derived
            if node.name().endswith("AccumulateGrad"):
                return self.weight(node.variable)
            if not _VIEWS.fullmatch(node.name()):
                return None
            node = node.next_functions[0][0]
        return None

    def recovered(self, tensor: Tensor, weight: Weight) -> bool:
        """Whether a tensor without a mark is this weight, rounded; it is marked then."""
        source = weight.parameter
        for view in () if source is None else (source, source.mT):
            if view.shape == tensor.shape and torch.equal(view.to(tensor.dtype), tensor):
                self._place_copy(tensor, weight, view)
                return True
        return False
