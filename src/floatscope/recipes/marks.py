"""What is known of tensors, by the memory that they share with their views."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef

_FEW = 64

Mark = TypeVar("Mark")


class Marks(Generic[Mark]):
    """What is known of tensors, by their memory, as long as that lives."""

    def __init__(self) -> None:
        self._by_memory: dict[int | None, tuple[StorageWeakRef, list[Mark]]] = {}
        self._room = _FEW

    def of(self, tensor: Tensor) -> list[Mark]:
        found = self._by_memory.get(memory_of(tensor))
        return [] if found is None or found[0].expired() else found[1]

    def add(self, tensor: Tensor, mark: Mark) -> None:
        reference = StorageWeakRef(tensor.untyped_storage())
        found = self._by_memory.get(reference.cdata)
        if found is None or found[0].expired():
            self._by_memory[reference.cdata] = (reference, [mark])
            if len(self._by_memory) > self._room:
                self.purge()
        elif mark not in found[1]:
            found[1].append(mark)

    def purge(self) -> None:
        """Forget memory that is gone; done by itself when the number of marks has doubled."""
        alive = {k: v for k, v in self._by_memory.items() if not v[0].expired()}
        self._by_memory, self._room = alive, max(2 * len(alive), _FEW)


def memory_of(tensor: Tensor) -> int | None:
    """What names the memory of a tensor, shared by its views; None if it has none of its own."""
    if tensor.layout is not torch.strided or is_functorch_wrapped_tensor(tensor):
        return None
    return tensor.untyped_storage()._cdata


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place; 0 where Torch does not count."""
    return 0 if tensor.is_inference() else tensor._version
