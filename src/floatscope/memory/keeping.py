"""How a workload keeps its weights between steps: as made, in 16 bits, with masters, in storage.

A recipe that stores weights in 16 bits is carried out as Torch's users do it, where plain Torch
can: the model itself is bf16 or fp16, nothing is cast, and the optimizer's states have its
parameters' dtype; or the optimizer holds fp32 masters, to which gradients are copied and freed at
the step, and weights are the masters, rounded. What plain Torch cannot do, and what is emulated, is
done as `TrainStep` does it (`recipes/storage.py`), on a model in the stored dtype natively and in
fp32 tensors emulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from floatscope.errors import LedgerError
from floatscope.memory.kept import way_of
from floatscope.memory.ledger import Category
from floatscope.memory.storages import converted
from floatscope.recipes.backend import DTYPES
from floatscope.recipes.compute import compute
from floatscope.recipes.recipe import Recipe
from floatscope.recipes.storage import Storage
from floatscope.rounding.outputs import has_values

Call = Callable[[], object]

_NATIVE = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Formats of weights that a model's own dtype can be."""


class Held(NamedTuple):
    """A tensor that is kept beside a parameter."""

    name: str
    """The parameter's path, and what it is."""
    tensor: Tensor
    category: Category


class Keeping(Protocol):
    """One way to keep weights."""

    note: str
    """What a reader should know; empty if nothing."""

    def convert(self, model: nn.Module, batch: Any) -> Any:
        """Bring a fresh model into the dtype in which it is kept; returns the batch for it."""

    def adopt(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Make what is kept beside the weights; the optimizer has not stepped yet."""

    def products(self, model: nn.Module, backend: str) -> AbstractContextManager[object]:
        """Inside it the model computes as the recipe says."""
        ...

    def update(self, unscale: Call, step: Call) -> None:
        """Apply the gradients: `step` is the optimizer's, `unscale` undoes loss scaling."""

    def held(self) -> Iterator[Held]:
        """What is kept beside the weights now."""
        ...


class AsMade:
    """Weights stay what they are; products cast them."""

    note = ""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def convert(self, model: nn.Module, batch: Any) -> Any:
        return batch

    def adopt(self, model: nn.Module, optimizer: Optimizer) -> None:
        pass

    def products(self, model: nn.Module, backend: str) -> AbstractContextManager[object]:
        return compute(self._recipe, model, backend)

    def update(self, unscale: Call, step: Call) -> None:
        unscale()
        step()

    def held(self) -> Iterator[Held]:
        yield from ()


class In16Bits:
    """The model's own dtype is bf16 or fp16, gradients' and moments' too; nothing is cast."""

    note = (
        "weights, gradients and moments are of 16 bits themselves and nothing is cast, as with "
        "model.bfloat16() in plain Torch; the laboratory's own step holds such values in fp32 "
        "tensors, and --backend emulated measures that"
    )

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def convert(self, model: nn.Module, batch: Any) -> Any:
        convert(model, self._dtype)
        return converted(batch, self._dtype)

    def adopt(self, model: nn.Module, optimizer: Optimizer) -> None:
        pass

    def products(self, model: nn.Module, backend: str) -> AbstractContextManager[object]:
        return nullcontext()

    def update(self, unscale: Call, step: Call) -> None:
        unscale()
        step()

    def held(self) -> Iterator[Held]:
        yield from ()


class WithMasters:
    """The model's own dtype is bf16 or fp16; the optimizer holds fp32 masters in its stead.

    Args:
        dtype: of the model.
        widens: whether the tensor that the model returns is widened to fp32, as loss scaling needs
            it: a scale of 65 536 is infinite in fp16.
    """

    note = (
        "weights are of 16 bits themselves and nothing is cast; the optimizer holds fp32 masters, "
        "to which gradients are copied and freed at the step; the laboratory's own step holds "
        "16-bit values in fp32 tensors, and --backend emulated measures that"
    )

    def __init__(self, dtype: torch.dtype, *, widens: bool) -> None:
        self._dtype, self._widens = dtype, widens
        self._masters: list[tuple[str, nn.Parameter, Tensor]] = []

    def convert(self, model: nn.Module, batch: Any) -> Any:
        convert(model, self._dtype)
        return converted(batch, self._dtype)

    def adopt(self, model: nn.Module, optimizer: Optimizer) -> None:
        names = {id(p): name for name, p in model.named_parameters()}
        for group in optimizer.param_groups:
            weights = group["params"]
            group["params"] = [w.detach().float().requires_grad_() for w in weights]
            for weight, master in zip(weights, group["params"], strict=True):
                self._masters.append((names.get(id(weight), ""), weight, master))
                if weight in optimizer.state:  # states that exist before the first step
                    optimizer.state[master] = converted(optimizer.state.pop(weight), torch.float32)

    def products(self, model: nn.Module, backend: str) -> AbstractContextManager[object]:
        return self._widened(model) if self._widens else nullcontext()

    @contextmanager
    def _widened(self, model: nn.Module) -> Iterator[None]:
        def widen(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            return output.float() if isinstance(output, Tensor) else output

        handle = model.register_forward_hook(widen)
        try:
            yield
        finally:
            handle.remove()

    @torch.no_grad()
    def update(self, unscale: Call, step: Call) -> None:
        for _, weight, master in self._masters:
            master.grad = None if weight.grad is None else weight.grad.float()
            weight.grad = None
        unscale()
        step()
        for _, weight, master in self._masters:
            weight.copy_(master)
            master.grad = None

    def held(self) -> Iterator[Held]:
        for name, _, master in self._masters:
            yield Held(f"{name}: master", master, Category.MASTER)


class InStorage:
    """As `TrainStep` keeps them: values are in the format, masters and moments are fp32 tensors."""

    def __init__(self, recipe: Recipe, dtype: torch.dtype | None) -> None:
        self._recipe, self._dtype = recipe, dtype
        self._storage: Storage | None = None
        kind = "fp32" if dtype is None else str(dtype).removeprefix("torch.")
        self.note = (
            f"weights are kept by the laboratory's own step: {kind} tensors with values in "
            f"{recipe.stored.weights}, and gradients, masters and moments in fp32 tensors"
        )

    def convert(self, model: nn.Module, batch: Any) -> Any:
        if self._dtype is not None:
            convert(model, self._dtype)
        return batch

    def adopt(self, model: nn.Module, optimizer: Optimizer) -> None:
        if not all(map(has_values, model.parameters())):
            raise LedgerError(
                f"weights of {self._recipe.name} are kept by the laboratory's own step, which "
                "looks at what becomes of each value, and a trace has none. Measure it instead."
            )
        self._storage = Storage(self._recipe.stored, model, optimizer)
        self._storage.prepare()

    def products(self, model: nn.Module, backend: str) -> AbstractContextManager[object]:
        return compute(self._recipe, model, backend)

    def update(self, unscale: Call, step: Call) -> None:
        assert self._storage is not None
        self._storage.accumulate()
        unscale()
        self._storage.step(step)

    def held(self) -> Iterator[Held]:
        if self._storage is None:
            return
        state = self._storage.state_dict()
        kinds = (("masters", "master", Category.MASTER), ("rests", "rest", Category.OPTIMIZER))
        for key, what, category in kinds:
            for name, tensor in state[key].items():
                yield Held(f"{name}: {what}", tensor, category)


def convert(model: nn.Module, dtype: torch.dtype) -> None:
    """Bring floating-point parameters and buffers into a dtype; parameters stay the same objects.

    As `model.to(dtype)`, which refuses to exchange the data of tensors without data.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)


def keeping_for(recipe: Recipe, backend: str) -> Keeping:
    """How a recipe's weights are kept where the given backend, native or emulated, computes."""
    way = way_of(recipe, backend)
    if way == "as made":
        return AsMade(recipe)
    own = DTYPES[recipe.products]
    if way == "masters":
        return WithMasters(own, widens=recipe.loss_scaling is not None)
    if way == "16 bits":
        return In16Bits(own)
    return InStorage(recipe, _NATIVE.get(recipe.stored.weights) if backend == "native" else None)
