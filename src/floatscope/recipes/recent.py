"""What was quantized last, of one kind: often the next product takes the same values again.

Queries, keys and values multiply one activation, of which autocast makes a copy for each; and the
two products of a gradient follow one another.

Only what was computed under autograd counts: memory from outside may be written to unseen, by NumPy
for one. Writes that Torch sees are counted in a tensor's version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from floatscope.formats import BlockFormat
from floatscope.recipes.formats_of import Operand, RoleName
from floatscope.recipes.marks import Marks, memory_of, version_of
from floatscope.recipes.quantize import Quantized


@dataclass(frozen=True)
class _Source:
    """A tensor that was cast."""

    view: tuple[Any, ...]
    number: int


@dataclass(frozen=True)
class _Copy:
    """That a tensor is a cast of another, and of which: equal numbers mean the same values."""

    number: int
    strides: tuple[int, ...]
    version: int
    """Of the tensor when it was made: what is changed later is no copy."""


class Copies:
    """Which tensors are casts of one tensor."""

    def __init__(self) -> None:
        self._sources: Marks[_Source] = Marks()
        self._copies: Marks[_Copy] = Marks()
        self._num_sources = 0

    def follow(self, given: Tensor, result: Tensor) -> None:
        """Take note of a cast."""
        if memory_of(given) is None or memory_of(result) is None or not given.requires_grad:
            return
        view = (*_whereabouts(given), given.shape, given.stride())
        number = next((s.number for s in self._sources.of(given) if s.view == view), None)
        if number is None:
            number = self._num_sources
            self._num_sources += 1
            self._sources.add(given, _Source(view, number))
        self._copies.add(result, _Copy(number, result.stride(), version_of(result)))

    def values_of(self, x: Tensor) -> tuple[Any, ...]:
        """What names the values of a tensor, as long as it and what it is a copy of are alive."""
        for copy in self._copies.of(x):
            if copy.version == version_of(x):
                return "copy", copy.number, copy.strides, x.storage_offset(), x.dtype
        return _whereabouts(x)


@dataclass(frozen=True)
class _Held:
    storage: StorageWeakRef
    """Of what was quantized; another tensor may be at its address once it is gone."""
    values: tuple[Any, ...]
    form: tuple[Any, ...]
    """Shape, strides, and the dimension that is contracted, if that makes a difference."""
    quantized: Quantized


class Recent:
    """One tensor's quantized form, until another's is kept."""

    def __init__(self, copies: Copies) -> None:
        self.copies = copies
        self._held: _Held | None = None

    def find(self, x: Tensor, operand: Operand, axis: int) -> Quantized | None:
        """The quantized form of the same values, whole or transposed, if it is held."""
        held = self._held
        if held is None or held.values != (*self.copies.values_of(x), operand):
            return None
        if held.values[0] != "copy" and held.storage.expired():
            return None
        if held.form == _form(x, operand, axis):
            return held.quantized
        if held.form == _form(x.mT, operand, axis) and is_shapeless(operand):
            return replace(held.quantized, values=held.quantized.values.mT)
        return None

    def forget(self) -> None:
        """Hold nothing: the memory of what was held is about to be used again."""
        self._held = None

    def keep(self, x: Tensor, operand: Operand, axis: int, quantized: Quantized) -> None:
        """Hold this one in place of what was held."""
        if memory_of(x) is not None:
            storage, values = StorageWeakRef(x.untyped_storage()), self.copies.values_of(x)
            self._held = _Held(storage, (*values, operand), _form(x, operand, axis), quantized)


def may_come_again(x: Tensor, role: RoleName) -> bool:
    """Whether a tensor was computed under autograd."""
    return role == "gradient" or (role == "activation" and x.requires_grad)


def is_repeatable(operand: Operand) -> bool:
    """Whether the same values are quantized alike each time."""
    return operand.rounding != "stochastic" and not operand.history


def is_shapeless(operand: Operand) -> bool:
    """Whether an operand's values do not depend on the dimension that is contracted."""
    form = operand.form
    is_whole = not isinstance(form, BlockFormat) or (operand.block or form.block) == "tensor"
    return is_whole and is_repeatable(operand) and not operand.hadamard


def _whereabouts(x: Tensor) -> tuple[Any, ...]:
    return "own", memory_of(x), x.storage_offset(), version_of(x)


def _form(x: Tensor, operand: Operand, axis: int) -> tuple[Any, ...]:
    return x.shape, x.stride(), 0 if is_shapeless(operand) else axis
