"""The tensors in what a module returns, with a name for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


def leaves(output: Any, name: str = "output") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in an output, in order, named by its path.

    Looks into mappings, lists, tuples, named tuples, dataclasses and whatever is registered with
    `torch.utils._pytree`; everything else that is no tensor is passed over.
    """
    if isinstance(output, Tensor):
        yield name, output
        return
    for path, child in _children(output):
        yield from leaves(child, name + path)


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):  # ModelOutput of Transformers too
        yield from ((f"[{key!r}]", child) for key, child in node.items())
    elif isinstance(node, tuple) and hasattr(node, "_fields"):
        fields = getattr(node, "_fields")  # noqa: B009
        yield from ((f".{key}", child) for key, child in zip(fields, node, strict=True))
    elif isinstance(node, (list, tuple)):
        yield from ((f"[{index}]", child) for index, child in enumerate(node))
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        for field in dataclasses.fields(node):
            yield f".{field.name}", getattr(node, field.name, None)
    elif type(node) in pytree.SUPPORTED_NODES:
        children, _ = pytree.SUPPORTED_NODES[type(node)].flatten_fn(node)
        yield from ((f"[{index}]", child) for index, child in enumerate(children))
