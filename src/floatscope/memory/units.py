"""Bytes in words: MiB and GiB are powers of 1024, MB and GB powers of 1000, always named."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
MB = 10**6
GB = 10**9

DTYPE_NAMES = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "e4m3fn",
    "float8_e5m2": "e5m2",
}


class Unit(NamedTuple):
    """A unit of a table, such as MiB."""

    name: str
    size: int
    """Bytes."""

    def of(self, num_bytes: int) -> str:
        """`num_bytes` in this unit with two decimals and no unit, half up."""
        return rounded(Fraction(num_bytes, self.size), 2)


IN_KIB, IN_MIB, IN_GIB = Unit("KiB", KIB), Unit("MiB", MIB), Unit("GiB", GIB)


def unit_for(most: int) -> Unit:
    """The unit of a table whose largest entry has `most` bytes.

    KiB below 1 MiB, GiB from 10 GiB on, else MiB: so two decimals tell entries apart.
    """
    if most < MIB:
        return IN_KIB
    return IN_GIB if most >= 10 * GIB else IN_MIB


def mib(num_bytes: int) -> str:
    """`num_bytes` in MiB with two decimals and no unit, half up: 1057390596 gives "1008.41"."""
    return rounded(Fraction(num_bytes, MIB), 2)


def rounded(value: Fraction, decimals: int) -> str:
    """`value` in decimal, rounded half away from zero, with exactly `decimals` decimals."""
    return _shifted(value, int(abs(value) * 10**decimals + Fraction(1, 2)), decimals)


def cut(value: Fraction, decimals: int) -> str:
    """`value` in decimal, with the digits after `decimals` decimals left out."""
    return _shifted(value, int(abs(value) * 10**decimals), decimals)


def _shifted(value: Fraction, units: int, decimals: int) -> str:
    digits = str(units).rjust(decimals + 1, "0")
    text = f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits
    return f"-{text}" if value < 0 and units else text


def dtype_name(dtype: object) -> str:
    """The project's short name of a Torch dtype: "fp32" for torch.float32, "int64" as it is."""
    name = str(dtype).removeprefix("torch.")
    return DTYPE_NAMES.get(name, name)


def up(value: Fraction | int) -> int:
    """The smallest integer that is at least `value`: bytes on the device that holds the most."""
    return -((-Fraction(value)) // 1)
