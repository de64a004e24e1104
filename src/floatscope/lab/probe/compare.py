"""Reality beside paper: what a pass in 16 bits did to each gradient that fp32 has."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from floatscope.formats import FloatFormat
from floatscope.lab.probe.backward import Pass
from floatscope.lab.probe.records import Backward
from floatscope.spectrum.spectrum import Spectrum


def of_parameters(
    real: Pass, reference: Pass, spectra: dict[str, Spectrum], form: FloatFormat, exponent: int
) -> list[Backward]:
    """A row a parameter: `real` was run at 2^exponent, `reference` in fp32 at 1.

    A parameter that fp32 gave a gradient and the pass did not counts as all zero.
    """
    rows: list[Backward] = []
    for name, exact in reference.gradients.items():
        given = real.gradients.get(name)
        given = torch.zeros_like(exact) if given is None else given.to(exact.device)
        is_there = exact != 0
        measured = Spectrum.of(given)
        error, median_error = _errors(given, exact, is_there, exponent)
        rows.append(
            Backward(
                name=name,
                format=form.name,
                exponent=exponent,
                zeros=int(((given == 0) & is_there).sum()),
                subnormals=measured.below(form.emin).count,
                infinities=int((given.isinf() & is_there).sum()),
                nans=int((given.isnan() & is_there).sum()),
                of=int(is_there.sum()),
                predicted=spectra[name].underflow(form, 2.0**exponent).count,
                error=error,
                median_error=median_error,
            )
        )
    return rows


def on_the_way(real: Pass, reference: Pass, form: FloatFormat, exponent: int) -> list[Backward]:
    """A row a module: the gradients of its outputs, zeros counted among all elements.

    Modules whose gradients were not in the format, but in fp32, are left out.
    """
    rows: list[Backward] = []
    for name, exact in reference.on_the_way.items():
        given = real.on_the_way.get(name)
        if given is None or given.fraction_bits != form.fraction_bits:
            continue
        rows.append(
            Backward(
                name=name,
                format=form.name,
                exponent=exponent,
                zeros=given.zeros,
                subnormals=given.below(form.emin).count,
                infinities=given.positive_infinities + given.negative_infinities,
                nans=given.nans,
                of=given.num_elements,
                predicted=exact.zeros + exact.underflow(form, 2.0**exponent).count,
                error=math.nan,
                median_error=math.nan,
            )
        )
    return rows


def _errors(given: Tensor, exact: Tensor, is_there: Tensor, exponent: int) -> tuple[float, float]:
    """Relative error of the whole, and of the median element; infinite or NaN if elements are."""
    exact = exact.double()
    difference = (given.double() * 2.0**-exponent - exact).abs()
    norm = exact.norm().item()
    whole = difference.norm().item() / norm if norm else math.nan
    relative = (difference / exact.abs())[is_there].nan_to_num(nan=math.inf, posinf=math.inf)
    median = relative.median().item() if relative.numel() else math.nan
    return whole, median
