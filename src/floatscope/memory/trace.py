"""The trace: the same two steps on tensors without data.

Fake tensors have shapes, dtypes and devices, and storages of the right size that are never
allocated; so the meter's machinery, run on them, predicts memory before anything is allocated. The
real kernels are chosen as they would be, since a fake tensor says that it lies on its device.

What it cannot know: code that asks whether it is being traced may compute something else, and code
that reads a value cannot run. The first shows in a comparison with `measure` at a tiny shape; the
second is refused.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import _disable_current_modes

from floatscope.errors import LedgerError
from floatscope.memory.kernels import RealKernels
from floatscope.memory.measurement import Measurement
from floatscope.memory.meter import observe
from floatscope.memory.storages import tensors_in
from floatscope.memory.workload import Alive, Workload
from floatscope.rounding.outputs import shapes_only

_READS = (DataDependentOutputException, DynamicOutputShapeException)
_UNKNOWN = (UnsupportedOperatorException, UnsupportedFakeTensorException)
_SAID = {
    "no fake impl registered": "calls an operation of its own that fake tensors do not have",
    "not supported for tensor subclasses": "looks into the memory of a tensor",
}
"""Part of what Torch says, and what it comes to."""


def trace(workload: Workload) -> Measurement:
    """Predict what `measure` would measure. Nothing is allocated.

    A model or batch that the workload's factories do not make but merely hand over is copied
    without its data, and stays as it is.

    Args:
        workload: what to run, on fake tensors.

    Raises:
        LedgerError: the code reads the value of a tensor or looks into its memory, calls an
            operation without a fake implementation, has weights in storage, which looks at values,
            or wants a device that this build of Torch cannot compute on.
        RecipeError: see `stages`.
    """
    mode = FakeTensorMode(allow_fallback_kernels=False)
    kernels = RealKernels()
    try:
        with mode, kernels, shapes_only():
            traced = observe(workload, "trace", prepare=_Prepare(mode))
    except _READS as error:
        raise LedgerError(_refusal(error, "reads the value of a tensor")) from error
    except _UNKNOWN as error:
        reason = "calls an operation that fake tensors do not have"
        raise LedgerError(_refusal(error, reason)) from error
    except RuntimeError as error:
        if "not linked with support for" in str(error):
            raise LedgerError(f"{error}; trace on the CPU, or where the device is.") from error
        reason = next((why for said, why in _SAID.items() if said in str(error)), "")
        if not reason:
            raise
        raise LedgerError(_refusal(error, reason)) from error
    return replace(traced, notes=(*traced.notes, *sorted(kernels.notes)))


class _Prepare:
    """Makes what the factories returned fake, where it is not."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode

    def __call__(self, alive: Alive) -> None:
        tensors = [*alive.model.parameters(), *alive.model.buffers()]
        if not all(isinstance(t, FakeTensor) for t in tensors):
            alive.model = self._fake(alive.model)
        if not all(isinstance(t, FakeTensor) for t in tensors_in(alive.batch)):
            alive.batch = self._fake(alive.batch)
        for device in {t.device for t in (*tensors, *tensors_in(alive.batch))}:
            _check_device(device)

    def _fake(self, thing: Any) -> Any:
        with _disable_current_modes(), FakeCopyMode(self._mode):
            return copy.deepcopy(thing)


def _check_device(device: torch.device) -> None:
    """Refuse devices on which Torch would abort the process instead of tracing."""
    if device.type == "cpu":
        return
    if device.type == "meta":
        raise LedgerError(
            "the model is on the meta device, where Torch chooses other kernels than on a real one."
            " Make it on the device it will be trained on; the trace allocates nothing there."
        )
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != device.type:
        raise LedgerError(
            f"the model or its batch is on {device.type}, which this machine does not have; Torch "
            "cannot trace for it here. Trace on the CPU, or on a machine with the device."
        )


def _refusal(error: Exception, what: str) -> str:
    where = "; ".join(getattr(error, "__notes__", []))
    return (
        f"the workload {what} ({error}), and a trace has none. {where} Measure it instead, or hand "
        "over a model that is built already."
    )
