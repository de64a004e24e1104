"""Where fake tensors differ from what real kernels allocate (Torch 2.13, CPU).

Rules that are exact are applied to the traced storages; for the rest there is a note, which the
trace carries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from floatscope.memory.engine import reads_for_engine

aten = torch.ops.aten

_UNREDUCED = frozenset(
    {
        aten.mse_loss.default, aten.smooth_l1_loss.default, aten.soft_margin_loss.default,
        aten.binary_cross_entropy.default,
    }
)  # fmt: skip
"""Losses whose kernels write every element's loss into the result's storage and then reduce it in
place: the scalar keeps the whole storage."""

_NORMS = frozenset(
    {
        aten.native_layer_norm.default, aten.native_group_norm.default,
        aten.native_batch_norm.default, aten._native_batch_norm_legit.default,
    }
)  # fmt: skip
"""Norms whose kernels keep mean and 1 / deviation in fp32 where a 16-bit input meets fp32 gains;
fake ones keep them in the input's format."""

_READS = frozenset({aten.item.default, aten._local_scalar_dense.default})
_WITH_WORKSPACE = frozenset({aten.mkldnn_rnn_layer.default})


class RealKernels(TorchDispatchMode):
    """Context manager, entered inside a `FakeTensorMode`: gives results their real sizes.

    A number that the engine of recipes reads, such as a scale, is 1: no size depends on it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notes: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _READS and reads_for_engine():
            return 1.0
        if func is aten._grouped_mm.default and args[0].device.type == "cpu":
            return _grouped_product(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func in _UNREDUCED and result.device.type == "cpu":
            size = args[0].numel() * result.element_size()
            result.untyped_storage().resize_(max(size, result.element_size()))
        elif func in _NORMS and args[0].device.type == "cpu" and _is_mixed(args):
            output, *statistics = result
            return (output, *(s.new_empty(s.shape, dtype=torch.float32) for s in statistics))
        elif func in _WITH_WORKSPACE:
            self.notes.add(
                "an LSTM or GRU computed by oneDNN saves a workspace whose size only the kernel "
                "knows; the trace has none"
            )
        elif isinstance(result, Tensor) and result.layout is not torch.strided:
            self.notes.add(
                f"a tensor of layout {str(result.layout).removeprefix('torch.')} has as many "
                "entries as the data decide; the trace has none"
            )
        return result


def _is_mixed(args: tuple[Any, ...]) -> bool:
    others = [a for a in args[1:] if isinstance(a, Tensor)]
    return args[0].element_size() == 2 and any(a.dtype is torch.float32 for a in others)


def _grouped_product(
    left: Tensor, right: Tensor, offs: Tensor | None = None, *_: Any, **__: Any
) -> Tensor:
    """The result of `_grouped_mm`, whose fake kernel takes bf16 alone; the CPU's takes all.

    Groups of rows by matrices (2-D, 3-D), columns by columns (2-D, 2-D), batches (3-D, 3-D), or
    matrices by groups of columns (3-D, 2-D).
    """
    if left.dim() == 2 and right.dim() == 2:
        groups = 0 if offs is None else offs.shape[0]
        return left.new_empty(groups, left.shape[0], right.shape[1])
    if left.dim() == right.dim() == 3:
        return left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    return left.new_empty(left.shape[-2], right.shape[-1])
