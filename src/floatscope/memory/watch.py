"""The live meter: every storage from its birth to its release, below autograd.

A `TorchDispatchMode` sees the result of every operation; a weak reference to each storage tells
when it is released; hooks on saved tensors tell which storages wait for backward. Nothing is
computed otherwise than without it.

Blind inside one kernel: what an operation allocates and releases before it returns is not seen. Nor
is what no operation makes: the 8 bytes that autograd keeps of a Python number that a tensor is
multiplied with, and the state of a random generator (5056 bytes on a CPU), which activation
checkpointing keeps for each block.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from floatscope.memory.attribution import Attribution
from floatscope.memory.engine import Engine
from floatscope.memory.ledger import Stage
from floatscope.memory.storages import parts_of, tensors_in
from floatscope.memory.tape import Allocation, CastOf, Place, Saver, Tape
from floatscope.memory.units import dtype_name

aten = torch.ops.aten

OUTSIDE = {
    Stage.BUILD: "(build)",
    Stage.FORWARD: "(loss)",
    Stage.BACKWARD: "(backward)",
    Stage.OPTIMIZER: "(optimizer)",
    Stage.ZERO_GRAD: "(zero_grad)",
    Stage.FORWARD_2: "(loss)",
    Stage.BACKWARD_2: "(backward)",
}
"""Where a stage's operations belong when no module runs."""


class Watch(TorchDispatchMode):
    """Context manager that writes a `Tape` of what happens inside it.

    `begin` and `end` mark stages. Leaving it, also by an exception, removes every hook and every
    weak reference; the tape stays.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tape = Tape()
        self.attribution = Attribution(self._see_output)
        self.engine: Engine | None = None
        """Tells what the engine of recipes makes for itself, where it is at work."""
        self.uncounted: set[str] = set()
        """Kinds of tensors without a storage that can be counted."""
        self._stage = Stage.BUILD
        self._began = 0
        self._live: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    # Stages

    def begin(self, stage: Stage) -> None:
        """Start a stage."""
        self._stage, self._began = stage, self.tape.position
        self.attribution.outside = OUTSIDE[stage]

    def end(self) -> None:
        """End the present stage."""
        self._notice_resizes()
        self.tape.stages[self._stage] = (self._began, self.tape.position)

    def numbers(self, tensors: Iterable[Tensor]) -> list[int]:
        """The tape's numbers of the storages behind `tensors`, new ones recorded as older."""
        parts = [part for tensor in tensors for part in self._parts(tensor)]
        return [self._number(part, is_older=True) for part in parts]

    # What happens

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # half of all operations on fake tensors
            return func(*args, **kwargs)
        # What a constructor in C++ filled shows up as the operand of lift_fresh.
        is_older = func is not aten.lift_fresh.default
        operands = [*_tensors((*args, *kwargs.values()))]
        taken = [n for tensor in operands for n in self._see(tensor, is_older=is_older)]
        result = func(*args, **kwargs)
        results = (result,) if isinstance(result, Tensor) else _tensors(result)
        is_cast = func is aten._to_copy.default and bool(operands) and _narrows(operands[0], result)
        source = _cast_of(operands[0], taken) if is_cast else None
        for tensor in results:
            self._see(tensor, cast_of=source, is_cast=is_cast)
        self.tape.last_use.update(dict.fromkeys(taken, self.tape.position))
        return result

    def _see(self, tensor: Tensor, **how: Any) -> list[int]:
        return [self._number(part, **how) for part in self._parts(tensor)]

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        parts = parts_of(tensor)
        if not parts:
            self.uncounted.add(str(tensor.layout).removeprefix("torch."))
        return parts

    def _number(
        self,
        tensor: Tensor,
        *,
        is_older: bool = False,
        is_cast: bool = False,
        cast_of: CastOf | None = None,
    ) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._live.get(key)
        if known is not None:
            self.tape.resize(known[0], storage.nbytes())
            return known[0]
        made_as = self.engine(tensor) if self.engine is not None else ""
        allocation = Allocation(
            dtype=dtype_name(tensor.dtype),
            place=self.attribution.place,
            stage=self._stage,
            in_backward=self.attribution.in_backward,
            is_cast=is_cast,
            made_as=made_as,
            is_older=is_older and not made_as,
            cast_of=cast_of,
        )
        number = self.tape.allocate(allocation, storage.nbytes())
        self._live[key] = (number, weakref.ref(storage, lambda _: self._release(key, number)))
        return number

    def _release(self, key: int, number: int) -> None:
        self.tape.free(number)
        self._live.pop(key, None)

    def _notice_resizes(self) -> None:
        """What was resized without an operation, as `storage.resize_` does."""
        for number, reference in list(self._live.values()):
            storage = reference()
            if storage is not None:
                self.tape.resize(number, storage.nbytes())

    def _see_output(self, output: Any) -> None:
        self.tape.outputs.update(self.numbers(tensors_in(output)))

    # What is saved for backward

    def _pack(self, tensor: Tensor) -> tuple[Tensor, int]:
        module, function = self.attribution.place
        place = Place(module, function or "custom function")
        saver = Saver(place, dtype_name(tensor.dtype))
        for number in self.numbers([tensor]):
            self.tape.saved.setdefault(number, saver)
        return tensor, tensor._version

    def watch(self, model: nn.Module) -> None:
        """Attribute to the modules of `model` from now on."""
        self.attribution.watch(model)

    def __enter__(self) -> Watch:
        self.attribution.__enter__()
        self._hooks.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._hooks.__exit__(*exception)
        self.attribution.__exit__(*exception)
        self._live.clear()


def _unpack(packed: tuple[Tensor, int]) -> Tensor:
    """The saved tensor, unless it was changed since: hooks switch Torch's own check off."""
    tensor, version = packed
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a {dtype_name(tensor.dtype)} tensor of shape {tuple(tensor.shape)} is at "
            f"version {tensor._version}; expected version {version} instead."
        )
    return tensor


def _tensors(tree: Any) -> list[Tensor]:
    """The tensors among the arguments or results of an operation."""
    found = []
    for item in tree if isinstance(tree, (tuple, list)) else (tree,):
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list)):
            found += _tensors(item)
    return found


def _narrows(before: Tensor, after: Any) -> bool:
    return (
        isinstance(after, Tensor)
        and before.dtype.is_floating_point
        and after.dtype.is_floating_point
        and after.dtype.itemsize <= 2
        and after.dtype.itemsize < before.dtype.itemsize
    )


def _cast_of(source: Tensor, numbers: list[int]) -> CastOf | None:
    """None where the source has no single storage of its own, or its version is not tracked."""
    if source.layout is not torch.strided or not numbers or source.is_inference():
        return None
    offset = int(source.storage_offset())
    return CastOf(numbers[0], source._version, offset, tuple(source.shape), source.stride())
