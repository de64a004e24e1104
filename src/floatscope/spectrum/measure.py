"""From a tensor to its spectrum: which kernel reads it, and as what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.rounding.outputs import check_plain
from floatscope.spectrum.on_cpu import takes, tally_cpu
from floatscope.spectrum.spectrum import Spectrum, from_tally
from floatscope.spectrum.tally import FP32, FP64, Layout


@dataclass(frozen=True)
class Measurement:
    """A tally, still on the device that made it."""

    tally: Any
    """int64: a NumPy array from the CPU, a tensor from elsewhere."""
    layout: Layout
    dtype: torch.dtype

    def spectrum(self) -> Spectrum:
        """Fetch the tally; this is where a device is waited for."""
        tally = self.tally.cpu().numpy() if isinstance(self.tally, Tensor) else self.tally
        info = torch.finfo(self.dtype)
        return from_tally(
            tally,
            self.layout,
            fraction_bits=round(-np.log2(info.eps)),
            smallest_normal=round(np.log2(info.tiny)),
        )


def spectrum_of(x: Any) -> Spectrum:
    """See `Spectrum.of`."""
    if isinstance(x, np.ndarray):
        x = _from_numpy(x)
    return measure(x).spectrum()


@torch.no_grad()
def measure(x: Tensor) -> Measurement:
    """Count a tensor's elements, without waiting for its device.

    Raises:
        FormatError: see `Spectrum.of`.
    """
    x = _local(x)
    layout = FP64 if x.dtype is torch.float64 else FP32
    given = x.detach().resolve_neg().contiguous().reshape(-1)
    dtype = x.dtype
    if given.device.type == "cpu" and layout is FP32:
        if not takes(given.dtype):
            given = given.to(torch.float32)
        return Measurement(tally_cpu(given), layout, dtype)
    from floatscope.spectrum.anywhere import tally_anywhere

    return Measurement(tally_anywhere(given, layout), layout, dtype)


def _from_numpy(x: np.ndarray[Any, Any]) -> Tensor:
    if x.dtype not in (np.float16, np.float32, np.float64):
        raise FormatError(f"a spectrum is of floating-point numbers, and this array is {x.dtype}.")
    return torch.from_numpy(np.require(x, requirements=["C", "W"]))


def _local(x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        raise FormatError(f"a spectrum is of a tensor or an array, not of {type(x).__name__}.")
    if hasattr(x, "to_local"):  # DTensor
        x = x.to_local()
    if x.is_complex():
        raise FormatError(f"this tensor is {x.dtype}; measure torch.view_as_real(x).")
    if not x.is_floating_point():
        raise FormatError(
            f"a spectrum is of floating-point numbers, and this tensor is {x.dtype}; "
            "convert it with x.double() if its octaves are what you want."
        )
    if x.is_meta:
        raise FormatError("a tensor on the meta device has no values to measure.")
    check_plain(x, "Spectrum.of")
    return x
