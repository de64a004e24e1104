"""Forward or backward: which of the two an operation below autograd belongs to.

In backward an operation belongs to an autograd node. It differentiates, unless the node recomputes
what activation checkpointing did not keep, and that is forward again. Recomputation is told by any
of three signs: it has gradients switched on; it runs in the node that reentrant checkpointing
makes, which computes nothing itself; or hooks for saved tensors were entered since the node began,
as the other kind of checkpointing does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch._C import _autograd  # type: ignore[attr-defined]

from floatscope.recipes.marks import memory_of

_BEGUN = "floatscope.begun"
_CHECKPOINT = "CheckpointFunctionBackward"


@dataclass(frozen=True)
class _Begun:
    """How a node began."""

    flowing: dict[int | None, tuple[torch.Size, tuple[int, ...]]]
    """Shape and strides of the gradients that flow into it, by their memory."""
    hooks: Any


def begin(gradients: Iterable[Tensor | None]) -> None:
    """Take note that an autograd node begins, of which these are the output gradients."""
    given = [g for g in gradients if g is not None and g.layout is torch.strided]
    flowing = {memory_of(g): (g.shape, g.stride()) for g in given}
    node: Any = torch._C._current_autograd_node()
    node.metadata[_BEGUN] = _Begun(flowing, _saving())


def is_backward() -> bool:
    """Whether this operation differentiates; a block recomputed in backward does not."""
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return False
    node: Any = torch._C._current_autograd_node()
    if node is None or node.name() == _CHECKPOINT:
        return False
    begun = node.metadata.get(_BEGUN)
    return begun is None or begun.hooks == _saving()


def flow_of(tensor: Tensor) -> Literal["as it is", "transposed", "unclear"] | None:
    """How a tensor is the matrix that flows into the node under way: the output gradient.

    None if it is not, or no matrix.
    """
    node: Any = torch._C._current_autograd_node()
    begun = node.metadata.get(_BEGUN)
    shape, strides = begun.flowing.get(memory_of(tensor), ((), ())) if begun else ((), ())
    if len(shape) < 2:
        return None
    direct = (tensor.shape, tensor.stride()) == (shape, strides)
    turned = (tensor.mT.shape, tensor.mT.stride()) == (shape, strides)
    if direct == turned:
        return "unclear"
    return "as it is" if direct else "transposed"


def _saving() -> Any:
    return _autograd._top_saved_tensors_default_hooks(True)
