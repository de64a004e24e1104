"""From a tensor to its spectrum: which kernel reads it, and as what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.rounding.cast import DTYPES
from floatscope.rounding.outputs import check_plain
from floatscope.spectrum.on_cpu import tally_cpu
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
        form = DTYPES[self.dtype]  # torch.finfo has a wrong eps for e5m2fnuz
        return from_tally(
            tally, self.layout, fraction_bits=form.fraction_bits, smallest_normal=form.emin
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
    given = x.detach().resolve_neg().contiguous().reshape(-1)
    if given.device.type == "cpu" and x.dtype is not torch.float64:
        return Measurement(tally_cpu(given), FP32, x.dtype)
    from floatscope.spectrum.anywhere import tally_anywhere

    layout = FP64 if x.dtype is torch.float64 else FP32
    return Measurement(tally_anywhere(given, layout), layout, x.dtype)


def _from_numpy(x: np.ndarray[Any, Any]) -> Tensor:
    native = x.dtype.newbyteorder("=")
    if native not in (np.float16, np.float32, np.float64):
        raise FormatError(
            f"a spectrum is of NumPy arrays of float16, float32 or float64, not of {x.dtype}."
        )
    if any(stride < 0 for stride in x.strides):  # also of one element, which NumPy calls contiguous
        x = x.copy()
    is_plain = x.dtype.isnative and x.flags.writeable and all(stride >= 0 for stride in x.strides)
    return torch.from_numpy(x if is_plain else np.array(x, native, order="C"))


def _local(x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        raise FormatError(f"a spectrum is of a tensor or an array, not of {type(x).__name__}.")
    x = getattr(x, "to_local", lambda: x)()  # of a DTensor
    if x.is_complex():
        raise FormatError(f"this tensor is {x.dtype}; measure torch.view_as_real(x).")
    if not x.is_floating_point():
        raise FormatError(
            f"a spectrum is of floating-point numbers, and this tensor is {x.dtype}; "
            "convert it with x.double() if its octaves are what you want."
        )
    if x.dtype not in DTYPES:
        raise FormatError(f"no format is known for {x.dtype}; convert this tensor first.")
    if x.is_meta:
        raise FormatError("a tensor on the meta device has no values to measure.")
    check_plain(x, "Spectrum.of")
    if x.layout is not torch.strided or x.is_nested:
        kind = "nested" if x.is_nested else f"of {x.layout}"
        raise FormatError(
            f"a spectrum is of dense tensors; of this one, {kind}, measure the values."
        )
    if x.numel() and not x.untyped_storage().nbytes():
        raise FormatError("the memory of this tensor has been freed, as FSDP does between uses.")
    return x
