"""The tensors in an object, and the storages behind a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested sequences, sets, mappings and dataclasses; others are opaque."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list, set, frozenset)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, Mapping):
        yield from tensors_in(tuple(tree.values()))
    elif is_dataclass(tree) and not isinstance(tree, type):
        for field in fields(tree):
            yield from tensors_in(getattr(tree, field.name, None))


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest with each of its tensors changed; sets and what is opaque stay as they are."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        items = [mapped(item, change) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in fields(tree) if field.init]
        return replace(tree, **{name: mapped(getattr(tree, name), change) for name in names})
    return tree


def converted(tree: Any, dtype: torch.dtype) -> Any:
    """The same nest with its floating-point tensors in another dtype; itself if it has none."""
    if not any(tensor.is_floating_point() for tensor in tensors_in(tree)):
        return tree
    return mapped(tree, lambda x: x.to(dtype) if x.is_floating_point() else x)


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The tensors that really hold a tensor's elements.

    Itself, for a plain one; indices and values of a sparse one; the inner tensors of a wrapper
    subclass that can be flattened. Empty for a tensor without a storage that can be looked at
    (mkldnn layouts, opaque backends).
    """
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[operator]
        return [part for name in names for part in parts_of(getattr(tensor, name))]
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []
