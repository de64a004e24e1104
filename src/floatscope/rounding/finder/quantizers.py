"""Quantizers under test: their names, and running one where some inputs make it raise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.formats import BlockFormat, Format
from floatscope.rounding import denormals
from floatscope.rounding.blocks import block_round
from floatscope.rounding.cast import cast_to
from floatscope.rounding.rules import Rules
from floatscope.rounding.tensors import round_to

Function = Callable[[Tensor], Tensor]
Quantizer = Function | Rules | str
"""A function from fp32 values to values of the same shape, or rules for `round_to`."""


@dataclass(frozen=True)
class Named:
    """A quantizer with what it is called."""

    name: str
    apply: Function


@dataclass(frozen=True)
class Ran:
    """What a quantizer made of inputs."""

    values: Tensor
    """Results in fp64, NaN where it raised."""
    errors: Mapping[int, str]
    """Errors by the place of the input along the first dimension."""

    @property
    def raised(self) -> Tensor:
        """Where along the first dimension it raised."""
        where = torch.zeros(len(self.values), dtype=torch.bool)
        where[list(self.errors)] = True
        return where


def named(f: Quantizer, g: Quantizer, form: Format) -> tuple[Named, Named]:
    """Both quantizers as functions, with two different names.

    Raises:
        FormatError: something that is no quantizer, or rules that do not fit the format.
    """
    first = Named(_name(f) or "f", _function(f, form))
    second = Named(_name(g) or "g", _function(g, form))
    if first.name == second.name:
        return Named(f"f: {first.name}", first.apply), Named(f"g: {second.name}", second.apply)
    return first, second


def run(quantizer: Named, x: Tensor, one_at_a_time: bool = False) -> Ran:
    """Give inputs to a quantizer, all at once, or in halves as long as it raises.

    Args:
        quantizer: what to run.
        x: fp32 inputs, stacked along the first dimension.
        one_at_a_time: whether the inputs must not see one another; each then loses that dimension.

    Raises:
        FormatError: a result that is no floating-point tensor of the input's shape.
    """
    values = torch.full(x.shape, math.nan, dtype=torch.float64)
    errors: dict[int, str] = {}
    size = 1 if one_at_a_time else max(len(x), 1)
    todo = [(start, min(start + size, len(x))) for start in range(0, len(x), size)][::-1]
    while todo:
        start, stop = todo.pop()
        given = x[start] if one_at_a_time else x[start:stop]
        try:
            with torch.no_grad():
                result = quantizer.apply(given.clone())
        except Exception as error:
            if stop - start == 1:
                errors[start] = f"{type(error).__name__}: {error}"
            else:
                middle = (start + stop) // 2
                todo += [(middle, stop), (start, middle)]
            continue
        _check_result(quantizer.name, result, given)
        with denormals.kept():
            values[start:stop] = result.cpu().double()
    return Ran(values, errors)


def _check_result(name: str, result: Any, given: Tensor) -> None:
    if not isinstance(result, Tensor) or not result.is_floating_point():
        what = (
            f"a tensor of {result.dtype}" if isinstance(result, Tensor) else type(result).__name__
        )
        raise FormatError(f"{name} gave {what}; quantizers give floating-point tensors.")
    if result.shape != given.shape:
        raise FormatError(
            f"{name} gave a result of shape {tuple(result.shape)} for inputs of shape "
            f"{tuple(given.shape)}; quantizers keep the shape."
        )


def _name(quantizer: Quantizer) -> str:
    if isinstance(quantizer, (str, Rules)):
        return quantizer if isinstance(quantizer, str) else quantizer.name
    name = getattr(quantizer, "__name__", "")
    return "" if name == "<lambda>" else name


def _function(quantizer: Quantizer, form: Format) -> Function:
    if not isinstance(quantizer, (str, Rules)):
        if not callable(quantizer):
            raise FormatError(
                f"a quantizer is a function of a tensor, rules or their name, not {quantizer!r}."
            )
        return quantizer
    if isinstance(form, BlockFormat):
        if quantizer != "standard":
            raise FormatError(
                f'for block formats rules have one name, "standard", not {_name(quantizer)!r}.'
            )
        return lambda x: block_round(x, form).values
    cast_to(form, quantizer, None, None, None)
    return lambda x: round_to(x, form, quantizer, dtype=torch.float64)
