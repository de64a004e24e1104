"""Demonstration 1: what fp32, fp16 and bf16 can hold.

A float is sign, exponent and fraction: ±1.fraction × 2^exponent. The exponent's bits decide the
range, the fraction's bits the precision. fp16 and bf16 spend the same 16 bits differently: fp16
keeps ten bits of fraction and gives up range, bf16 keeps fp32's eight bits of exponent and gives up
precision. Everything that training in 16 bits needs beyond fp32 is a patch for one or the other.

Below the smallest normal value the exponent can fall no further. The values there, the subnormals,
lie evenly spaced down to zero, so they have fewer and fewer significant bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from floatscope.errors import FormatError
from floatscope.formats import FloatFormat
from floatscope.formats import format as format_called
from floatscope.formats.show import shown
from floatscope.lab.lecture.records import FormatRow, Formats

NAMES = ("fp32", "fp16", "bf16")
DIGITS = 4
"""Of what has no short exact form."""


def formats(names: Sequence[str] = NAMES) -> Formats:
    """The table; every number follows exactly from the three fields of a format.

    Raises:
        FormatError: an unknown name, or one that is no float format with a zero.
    """
    return Formats(rows=tuple(row(float_format(name)) for name in names))


def row(form: FloatFormat) -> FormatRow:
    """One line of it."""
    return FormatRow(
        name=form.name,
        exponent_bits=form.exponent_bits,
        fraction_bits=form.fraction_bits,
        signed=form.signed,
        emax=form.emax,
        emin=form.emin,
        min_octave=form.min_octave,
        max=shown(
            form.max, DIGITS
        ),  # (2 - 2^-fraction_bits) * 2^emax where the format has infinities
        smallest_normal=shown(form.smallest_normal),  # 2^emin
        smallest=shown(form.smallest, DIGITS),  # 2^(emin - fraction_bits)
        eps=shown(form.eps),  # 2^-fraction_bits: from 1 to the next number
        # Half of the smallest value still rounds to zero: a tie, and zero is even.
        to_zero=f"≤ {shown(form.zero_threshold)}",
        overflows=f"{'≥' if form.tie_overflows else '>'} {shown(form.overflow_threshold, DIGITS)}",
    )


def float_format(name: str) -> FloatFormat:
    """The float format called `name`."""
    form = format_called(name)
    if not isinstance(form, FloatFormat) or not form.zero:
        raise FormatError(
            f"demonstration 1 compares float formats that have a zero, and {form.name} is none. "
            "`floatscope formats` shows every kind."
        )
    return form
