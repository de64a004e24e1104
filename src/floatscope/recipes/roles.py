"""Which operand is what: seen below autograd, where a product's operands have no names.

Weights are known by their memory. The parameters of a model are marked when the recipe is entered,
and the mark follows casts (autocast's copies) and views. In forward, whatever is multiplied by a
weight is an activation, and is marked as such. In backward, of the two operands of a product one
carries a mark: a weight says that the product makes the input gradient, an activation that it
makes the weight gradient; the other operand is the output gradient. A product without a mark, such
as attention's, is none of the three.

Marks hold on to the storage they were put on without keeping its memory, so that none can be taken
over by a later tensor at the same address.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from floatscope.recipes.formats_of import Kept

DERIVED = "(derived)"
"""The name of a weight that is no parameter, but computed from some."""


@dataclass(frozen=True, eq=False)
class Weight:
    """A parameter that products multiply with."""

    name: str
    source: Tensor
    """The parameter, without autograd."""
    kept: str
    """Why its products are left alone; empty if they are not."""


class Roles:
    """The marks of one model."""

    def __init__(self, model: nn.Module, kept: Kept) -> None:
        self._weights: dict[int, tuple[StorageWeakRef, Weight, bool]] = {}
        self._activations: dict[int, tuple[StorageWeakRef, Weight]] = {}
        self._flowing: list[Tensor] = []
        reasons = kept_weights(model, kept)
        for name, parameter in model.named_parameters():
            weight = Weight(name, parameter.detach(), reasons.get(name, ""))
            self._mark(parameter, weight, is_copy=True)

    def _mark(self, tensor: Tensor, weight: Weight, *, is_copy: bool) -> None:
        reference = StorageWeakRef(tensor.untyped_storage())
        self._weights[reference.cdata] = (reference, weight, is_copy)

    def follow(self, given: Tensor, result: Tensor) -> None:
        """A cast: the result is what was given, in another dtype."""
        found = self._weights.get(_key(given))
        if found is not None and not found[0].expired():
            is_copy = found[2] and given.stride() == result.stride()
            is_copy = is_copy and given.storage_offset() == result.storage_offset() == 0
            self._mark(result, found[1], is_copy=is_copy)

    def derive(self, tensor: Tensor) -> None:
        """Mark a weight that is computed from parameters, such as a normalized one."""
        if self.weight(tensor) is None:
            self._mark(tensor, Weight(DERIVED, tensor.detach(), ""), is_copy=True)

    def weight(self, tensor: Tensor) -> Weight | None:
        """The weight in this memory, if there is one."""
        found = self._weights.get(_key(tensor))
        return None if found is None or found[0].expired() else found[1]

    def unrounded(self, tensor: Tensor) -> Tensor:
        """The same view of the parameter itself, before any cast; the tensor if that is unknown."""
        found = self._weights.get(_key(tensor))
        if found is None or found[0].expired() or not found[2]:
            return tensor
        source = found[1].source
        offset = tensor.storage_offset() + source.storage_offset()
        return source.as_strided(tensor.shape, tensor.stride(), offset)

    def enter(self, tensor: Tensor, weight: Weight) -> None:
        """Mark an activation that a weight has multiplied."""
        reference = StorageWeakRef(tensor.untyped_storage())
        self._activations[reference.cdata] = (reference, weight)

    def flow(self, gradients: Iterable[Tensor | None]) -> None:
        """Take note of what flows into the autograd node that is next."""
        self._flowing = [g for g in gradients if g is not None]

    def flows(self, tensor: Tensor) -> bool:
        """Whether this is what flows into the node: the output gradient."""
        return any(_key(g) == _key(tensor) for g in self._flowing)

    def entered(self, tensor: Tensor) -> Weight | None:
        """The weight that has last multiplied this activation; None if it is none."""
        found = self._activations.get(_key(tensor))
        return None if found is None or found[0].expired() else found[1]


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def kept_weights(model: nn.Module, kept: Kept) -> dict[str, str]:
    """Why each weight that is left alone is, by name.

    Weights are the parameters of at least two dimensions that are no mere embedding tables.
    """
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    named = [(name, p) for name, p in model.named_parameters() if p.ndim >= 2]
    ordered = [name for name, p in named if id(p) not in embeddings]
    head = _head(model, named, embeddings) if kept.head else None
    reasons = {}
    body = [name for name in ordered if name != head]
    last = max(kept.last, math.ceil(kept.last_share * len(body)))
    for name in body[len(body) - last :] if last else []:
        reasons[name] = f"among the last {last}"
    for name in body[: kept.first]:
        reasons[name] = f"among the first {kept.first}"
    for name, _ in named:
        if _matches(name, kept.names):
            reasons[name] = "named"
    if head:
        reasons[head] = "the head"
    return reasons


def _head(
    model: nn.Module, named: Sequence[tuple[str, Tensor]], embeddings: set[int]
) -> str | None:
    """The weight that makes the logits.

    A linear layer's that is as long as an embedding, tied to it or not; else the longest embedding,
    which the model may multiply with by itself; without embeddings, the last linear layer's.
    """
    linears = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    lengths = {p.shape[0] for _, p in named if id(p) in embeddings}
    own = [(name, p) for name, p in named if id(p) in linears]
    if not lengths:
        return own[-1][0] if own else None
    long = [name for name, p in own if p.shape[0] in lengths and p.shape[0] == max(lengths)]
    tables = [(p.shape[0], name) for name, p in named if id(p) in embeddings]
    return long[-1] if long else max(tables)[1]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    module = name.rpartition(".")[0]
    return any(fnmatchcase(name, p) or fnmatchcase(module, p) for p in patterns)
