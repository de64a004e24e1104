"""A format and its rules as the integers that a kernel needs.

A kernel works on the bits of fp32 or fp64, its *carrier*. Bits of magnitudes are ordered like the
magnitudes, so thresholds are compared as integers. Rounding is integer arithmetic, or adds and
takes away an anchor, under the processor's default direction; subnormals are switched on for it.

The fp32 carrier serves what it can round in place; everything else (fp64 input, more than 22
fraction bits, subnormals or normals below fp32's) takes the fp64 carrier, which holds every fp32
value as a normal number, so nothing is rounded twice.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from floatscope.errors import FormatError
from floatscope.formats import FloatFormat, IntFormat
from floatscope.rounding.modes import Rounding
from floatscope.rounding.rules import Rules, ScalarFormat, has_zero

FAST_NEAREST = len(get_args(Rounding))
"""Mode number of the short form of nearest-even, for formats with at least one fraction bit."""

STOCHASTIC = get_args(Rounding).index("stochastic")

POLICIES = ("saturate", "to_inf", "to_nan", "raise")
NAN_POLICIES = ("keep", "max", "zero", "opposite_zero", "raise")
NEGATIVE_POLICIES = ("signed", "", "magnitude", "saturate", "to_nan", "raise")
ZERO_POLICIES = ("zero", "saturate", "to_nan", "raise")

_FRACTION = {32: 23, 64: 52}
_BIAS = {32: 127, 64: 1023}


@dataclass(frozen=True)
class Grid:
    """Everything a kernel asks of a cast, in the bits of the carrier; one array of uint64."""

    mode: int
    """The rounding: its place among `Rounding`, or FAST_NEAREST."""
    drop: int
    """Low bits that a normal value loses."""
    normal: int
    """Bits of the smallest normal value; those below lie on the even grid of `step`."""
    first_field: int
    """Exponent field from which on a value loses only `drop` bits."""
    step: int
    """Bits of the smallest subnormal value; of 1 if nothing lies on its grid."""
    one_by_step: int
    """Bits of its reciprocal."""
    anchor: int
    """Bits of 2^fraction * step: adding it to a subnormal rounds to a multiple of step."""
    largest: int
    """Bits of the largest value."""
    lowest: int
    """Bits of the magnitude of the lowest value: larger than `largest` in two's complement."""
    negative_zero: int
    """1 if the format has a negative zero."""
    flush: int
    """Bits of the smallest normal value if subnormal results become zero; else 0."""
    overflow: int
    infinity: int
    nan: int
    negative: int
    zero: int
    """The rules, by their place among the policies above; overflow follows the rounding too."""
    inward: int
    """Signs for which a finite overflow saturates by the rounding mode: bit 0 positive, bit 1
    negative."""
    code_shift: int
    """Normal code = (bits >> drop) - code_shift."""
    infinity_code: int
    nan_code: int
    width: int
    """Bits of a code."""
    integer: int
    """1 if codes are two's complement."""

    def array(self) -> NDArray[np.uint64]:
        return np.array([getattr(self, f.name) for f in fields(self)], np.uint64)


INDEX = {f.name: i for i, f in enumerate(fields(Grid))}


def bits_of(value: Fraction | float, carrier: int) -> int:
    """The bits of a value that fp32 or fp64 holds."""
    pack, unpack = {32: ("<f", "<I"), 64: ("<d", "<Q")}[carrier]
    return struct.unpack(unpack, struct.pack(pack, float(value)))[0]


def carrier_of(form: ScalarFormat, input_bits: int) -> int:
    """32 or 64: the carrier in which inputs of so many bits are rounded to the format.

    Raises:
        FormatError: fp64 does not hold the format.
    """
    fraction, lowest, highest = _extent(form)
    too_low = lowest < -1074 or (isinstance(form, FloatFormat) and form.emin < -1022)
    if fraction > 52 or too_low or highest > 1023:
        raise FormatError(
            f"{form.name} reaches beyond fp64; tensors are rounded to formats that fp64 holds."
        )
    fits = fraction <= 22 and highest <= 127 and _grid_fits(form)
    return 32 if input_bits <= 32 and fits else 64


def _grid_fits(form: ScalarFormat) -> bool:
    """Whether fp32's own exponents reach down to the format's: no value below 2^-126 is normal."""
    if isinstance(form, IntFormat):
        return form.step_exponent >= -126 and form.step_exponent + 23 <= 127
    return form.zero and form.emin >= -126 and (form.emin == -126 or form.min_octave >= -126)


def _extent(form: ScalarFormat) -> tuple[int, int, int]:
    """Fraction bits, exponent of the smallest value, exponent of the largest."""
    if isinstance(form, IntFormat):
        top = form.step_exponent + form.width - 1
        return form.width - 1, form.step_exponent, top
    return form.fraction_bits, form.min_octave, form.emax


@cache
def grid_of(form: ScalarFormat, rules: Rules, carrier: int) -> NDArray[np.uint64]:
    """The grid of a cast, ready for the CPU kernels. Do not write to it."""
    return grid_values(form, rules, carrier).array()


@cache
def grid_values(form: ScalarFormat, rules: Rules, carrier: int) -> Grid:
    """The grid of a cast to a format, for inputs in fp32 (carrier 32) or fp64 (64)."""
    fraction, bias = _FRACTION[carrier], _BIAS[carrier]
    infinity = (2 * bias + 1) << fraction
    mode = get_args(Rounding).index(rules.rounding)
    if isinstance(form, IntFormat):
        drop, normal, step = 1, infinity, form.step_exponent
        first_field = step + bias + fraction - drop
    else:
        drop = fraction - form.fraction_bits
        first_field = max(form.emin + bias, 1)
        normal = first_field << fraction if form.emin + bias > 0 else 1 << fraction
        step = form.min_octave
    if mode == 0 and _can_be_fast(form, drop):
        mode = FAST_NEAREST
    on_own_subnormals = first_field == 1 and isinstance(form, FloatFormat)
    is_signed = isinstance(form, IntFormat) or form.signed
    anchor = min(step + fraction, bias)
    return Grid(
        mode=mode,
        drop=drop,
        normal=0 if on_own_subnormals else normal,
        first_field=first_field,
        step=bits_of(Fraction(2) ** (0 if on_own_subnormals else step), carrier),
        one_by_step=bits_of(Fraction(2) ** (0 if on_own_subnormals else -step), carrier),
        anchor=bits_of(Fraction(2) ** anchor, carrier),
        largest=bits_of(form.max, carrier),
        lowest=bits_of(-form.min if isinstance(form, IntFormat) else form.max, carrier),
        negative_zero=int(isinstance(form, FloatFormat) and form.has_negative_zero),
        flush=bits_of(form.smallest_normal, carrier)
        if rules.flush_subnormals and isinstance(form, FloatFormat)
        else 0,
        overflow=POLICIES.index(rules.overflow),
        infinity=POLICIES.index(rules.infinity),
        nan=NAN_POLICIES.index(rules.nan),
        negative=0 if is_signed else NEGATIVE_POLICIES.index(rules.negative),
        zero=0 if has_zero(form) else ZERO_POLICIES.index(rules.zero),
        inward={"toward-zero": 3, "to-odd": 3, "up": 2, "down": 1}.get(rules.rounding, 0),
        **_codes(form, carrier),
    )


def _can_be_fast(form: ScalarFormat, drop: int) -> bool:
    return isinstance(form, IntFormat) or bool(form.fraction_bits and drop and form.zero)


def _codes(form: ScalarFormat, carrier: int) -> dict[str, int]:
    if isinstance(form, IntFormat):
        return {"code_shift": 0, "infinity_code": 0, "nan_code": 0, "width": form.width,
                "integer": 1}  # fmt: skip
    shift = (_BIAS[carrier] - form.bias) << form.fraction_bits
    return {
        "code_shift": shift & 0xFFFF_FFFF_FFFF_FFFF,
        "infinity_code": form.infinity_code or 0,
        "nan_code": form.nan_code or 0,
        "width": form.width,
        "integer": 0,
    }
