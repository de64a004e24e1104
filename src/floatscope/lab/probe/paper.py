"""Paper: what storing a gradient in a format would do, from its fp32 values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from floatscope.lab.probe.formats import BLOCK_FORMATS, EXPONENTS, FLOAT_FORMATS
from floatscope.lab.probe.records import Measured, Prediction
from floatscope.rounding import Receipt, block_round
from floatscope.spectrum.spectrum import Spectrum


def predictions(total: Spectrum, exponents: Iterable[int] = ()) -> list[Prediction]:
    """Every float format at every scale, and at 2^k for more k, for the whole gradient."""
    found: list[Prediction] = []
    for name in FLOAT_FORMATS:
        sweep = total.sweep(name, sorted({*EXPONENTS, *exponents}))
        columns = (sweep.exponents, sweep.underflow, sweep.subnormal, sweep.overflow)
        for exponent, underflow, subnormal, overflow in zip(*columns, strict=True):
            found.append(
                Prediction(
                    format=name,
                    exponent=int(exponent),
                    underflow=int(underflow),
                    subnormal=int(subnormal),
                    overflow=int(overflow),
                    of=sweep.of,
                )
            )
    return found


def measured(gradients: Mapping[str, Tensor]) -> list[Measured]:
    """Every block format on every gradient, along rows: scales depend on the neighbors."""
    found: list[Measured] = []
    for name, gradient in gradients.items():
        norm = gradient.double().norm().item()
        nonzero = int((gradient != 0).sum())
        for form in BLOCK_FORMATS:
            receipt = Receipt()
            values = block_round(gradient, form, receipt=receipt).values
            error = (values.double() - gradient.double()).norm().item()
            found.append(
                Measured(
                    name=name,
                    format=form,
                    underflow=int(((values == 0) & (gradient != 0)).sum()),
                    saturated=receipt.saturated,
                    of=nonzero,
                    error=error / norm if norm else 0.0,
                )
            )
    return found
