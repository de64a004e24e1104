"""Where fake tensors differ from what real kernels allocate (Torch 2.13, CPU).

Rules that are exact are applied to the traced storages; for the rest there is a note, which the
trace carries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

_UNREDUCED = frozenset(
    {
        aten.mse_loss.default, aten.smooth_l1_loss.default, aten.soft_margin_loss.default,
        aten.binary_cross_entropy.default,
    }
)  # fmt: skip
"""Losses whose kernels write every element's loss into the result's storage and then reduce it in
place: the scalar keeps the whole storage."""

_WITH_WORKSPACE = frozenset({aten.mkldnn_rnn_layer.default})


class RealKernels(TorchDispatchMode):
    """Context manager, entered inside a `FakeTensorMode`: gives results their real sizes."""

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
        result = func(*args, **(kwargs or {}))
        if func in _UNREDUCED and result.device.type == "cpu":
            size = args[0].numel() * result.element_size()
            result.untyped_storage().resize_(max(size, result.element_size()))
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
