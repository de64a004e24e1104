"""From a tensor at work to its spectrum, leaving no trace in what else watches the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from floatscope.errors import FormatError
from floatscope.rounding.outputs import check_plain
from floatscope.spectrum.capture.scales import UNSCALED, Scale
from floatscope.spectrum.measure import Measurement, measure
from floatscope.spectrum.spectrum import Spectrum

Taken = Measurement | Spectrum
"""A tally that its device still holds; or a spectrum, which is smaller, of what is on the CPU."""


def take(x: Tensor, scale: Scale = UNSCALED) -> Taken | str:
    """Measure a tensor, or a gradient that `scale` multiplied; or say why that is impossible.

    Powers of two are still in the result (see `Scale.divided`). A distributed tensor is measured
    in its local part.
    """
    with undisturbed():
        problem = obstacle(x) or scale.problem
        return problem or settled(measure(scale.divided(local(x))))


def obstacle(x: Tensor) -> str:
    """Why a tensor cannot be measured; empty if it can."""
    if is_lazy(x):
        return "it was not initialized yet"
    if not x.is_floating_point():
        return f"its elements are {x.dtype}"
    if x.layout is not torch.strided:
        return f"its layout is {x.layout}"
    if x.is_meta:
        return "it is on the meta device"
    try:
        check_plain(local(x), "a capture")
    except FormatError as error:
        return str(error)
    return ""


def settled(measurement: Measurement) -> Taken:
    """The spectrum if it can be had without waiting for a device."""
    tally = measurement.tally
    is_elsewhere = isinstance(tally, Tensor) and tally.device.type != "cpu"
    return measurement if is_elsewhere else measurement.spectrum()


def local(x: Any) -> Tensor:
    """The part of a distributed tensor that this process holds; any other tensor as it is."""
    return x.to_local() if hasattr(x, "to_local") else x


@contextmanager
def undisturbed() -> Iterator[None]:
    """Outside autograd, and past the modes that watch, count or emulate the model's operations."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        if torch._C._len_torch_dispatch_stack():
            with _disable_current_modes():
                yield
        else:
            yield


def fetched(tensors: list[Tensor]) -> list[Tensor]:
    """Copies on the CPU, in the same order, with one transfer for all of one device and shape."""
    alike: dict[tuple[torch.device, torch.Size], list[int]] = {}
    for index, tensor in enumerate(tensors):
        alike.setdefault((tensor.device, tensor.shape), []).append(index)
    copies: dict[int, Tensor] = {}
    for indices in alike.values():
        together = torch.stack([tensors[index] for index in indices]).cpu()
        copies |= dict(zip(indices, together, strict=True))
    return [copies[index] for index in range(len(tensors))]
