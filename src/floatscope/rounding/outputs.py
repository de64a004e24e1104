"""Given inputs and outputs: which tensors a kernel may look into, and what it may overwrite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from floatscope.errors import FormatError

_DISABLED = getattr(Tensor, "__torch_dispatch__")  # noqa: B009  (of plain tensors)
_functorch = getattr(torch._C, "_functorch")  # noqa: B009
_is_wrapped: Callable[[Tensor], bool] = _functorch.is_functorch_wrapped_tensor
_is_functional: Callable[[Tensor], bool] = getattr(torch, "_is_functional_tensor")  # noqa: B009
_mode, _TRACING = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.PROXY
_shapes_only: ContextVar[bool] = ContextVar("shapes_only", default=False)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Inside it fake tensors are rounded too: results have a shape and a dtype, and no values."""
    before = _shapes_only.set(True)
    try:
        yield
    finally:
        _shapes_only.reset(before)


def has_values(x: Tensor) -> bool:
    """Whether there is memory that a kernel could look into."""
    return not (x.is_meta or isinstance(x, FakeTensor))


def check_plain(x: Tensor, what: str) -> None:
    """Refuse tensors that only stand for memory: kernels read memory itself.

    Raises:
        FormatError: a wrapper of functorch or of a tracer, or a subclass that sees operations.
    """
    if isinstance(x, FakeTensor) and _shapes_only.get():
        return
    sees_operations = getattr(type(x), "__torch_dispatch__", _DISABLED) is not _DISABLED
    if sees_operations or _is_wrapped(x) or _is_functional(x) or _mode(_TRACING) is not None:
        raise FormatError(
            f"{what} looks into memory, and a {type(x).__name__} under torch.func, tracing or "
            "export has none of its own; call it outside of them. torch.compile leaves it eager."
        )


def can_write(out: Tensor, what: str) -> bool:
    """Whether a kernel can write into the memory of a given output as it lies.

    Raises:
        FormatError: it only stands for memory.
    """
    check_plain(out, what)
    return out.is_contiguous() and not out.is_neg()


def source_for(x: Tensor, out: Tensor | None) -> Tensor:
    """`x`, contiguous and outside autograd, so that writing to `out` does not disturb reading it.

    Where they share memory in any other way than element by element, it is a copy.
    """
    source = x.detach() if x.requires_grad else x
    source = source.resolve_neg().contiguous()
    if out is None or not _overlap(source, out):
        return source
    alike = source.data_ptr() == out.data_ptr() and source.dtype == out.dtype
    return source if alike and out.is_contiguous() else source.clone()


def mark_changed(out: Tensor) -> None:
    """Tell autograd that a given output was overwritten."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether the ranges of memory that two tensors span have bytes in common."""
    if not a.numel() or not b.numel() or not has_values(a):
        return False
    (start, stop), (first, last) = _span(a), _span(b)
    return start < last and first < stop


def _span(x: Tensor) -> tuple[int, int]:
    if x.is_contiguous():
        return x.data_ptr(), x.data_ptr() + x.nbytes
    reach = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True)) + 1
    return x.data_ptr(), x.data_ptr() + reach * x.element_size()
