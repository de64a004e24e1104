"""A cast: the format, the rules and, for stochastic rounding, the source of its random numbers."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cache

import torch

from floatscope.errors import FormatError
from floatscope.formats import FLOATS, BlockFormat, FloatFormat, Format, IntFormat
from floatscope.formats import format as format_called
from floatscope.formats.catalogue import E8M0FNU
from floatscope.formats.show import shown
from floatscope.rounding.grid import carrier_of
from floatscope.rounding.random_bits import MASK64, StochasticKey
from floatscope.rounding.reference import RANDOM_BITS
from floatscope.rounding.rules import Rules, ScalarFormat, resolve

_BY_NAME = {form.name: form for form in FLOATS}
DTYPES = {
    torch.float64: _BY_NAME["fp64"],
    torch.float32: _BY_NAME["fp32"],
    torch.float16: _BY_NAME["fp16"],
    torch.bfloat16: _BY_NAME["bf16"],
    torch.float8_e4m3fn: _BY_NAME["e4m3fn"],
    torch.float8_e5m2: _BY_NAME["e5m2"],
    torch.float8_e4m3fnuz: _BY_NAME["e4m3fnuz"],
    torch.float8_e5m2fnuz: _BY_NAME["e5m2fnuz"],
    torch.float8_e8m0fnu: _BY_NAME["e8m0fnu"],
}
"""The formats of Torch's floating dtypes."""


@dataclass(frozen=True)
class Cast:
    """What to round to, and how."""

    form: ScalarFormat
    rules: Rules
    key: int = 0
    """Of stochastic rounding: 64 bits."""
    random_bits: int = RANDOM_BITS

    @property
    def spare(self) -> int:
        """Random bits that are left unused."""
        return RANDOM_BITS - self.random_bits

    @property
    def can_raise(self) -> bool:
        rules = self.rules
        return "raise" in (rules.overflow, rules.infinity, rules.nan, rules.negative, rules.zero)

    @property
    def is_e8m0_to_nearest(self) -> bool:
        rules = self.rules
        nearest = rules.rounding in ("nearest-even", "nearest-away") and not rules.flush_subnormals
        return self.form == E8M0FNU and nearest and rules.nan == "keep"

    def carrier(self, dtype: torch.dtype) -> torch.dtype:
        """In which dtype inputs of `dtype` are rounded."""
        bits = 64 if dtype == torch.float64 else 32
        return torch.float32 if carrier_of(self.form, bits) == 32 else torch.float64


@cache
def cast_to(
    form: Format | str,
    rules: Rules | str | None,
    rounding: str | None,
    overflow: str | None,
    flush_subnormals: bool | None,
) -> Cast:
    """The cast that the choices describe, stochastic ones still without a key.

    Raises:
        FormatError: an unknown name, a block format, one that fp64 does not hold, or choices that
            the format cannot express.
    """
    form = format_called(form) if isinstance(form, str) else form
    if isinstance(form, BlockFormat):
        raise FormatError(f"{form.name} is a block format; use block_round.")
    if not isinstance(form, (FloatFormat, IntFormat)):
        raise FormatError(f"{form!r} is no format; give a name or a FloatFormat.")
    carrier_of(form, 64)
    chosen = resolve(
        form, rules, rounding=rounding, overflow=overflow, flush_subnormals=flush_subnormals
    )
    return Cast(form, chosen)


def keyed(
    cast: Cast,
    key: StochasticKey | int | None,
    generator: torch.Generator | None,
    random_bits: int,
) -> Cast:
    """The cast with the source of its random numbers, if it needs any.

    Raises:
        FormatError: a key and a generator, or an impossible number of random bits.
    """
    if cast.rules.rounding != "stochastic":
        return cast
    if not 1 <= random_bits <= RANDOM_BITS:
        raise FormatError(f"stochastic rounding takes 1 to 32 random bits, not {random_bits}.")
    return Cast(cast.form, cast.rules, _key_of(key, generator), random_bits)


def _key_of(key: StochasticKey | int | None, generator: torch.Generator | None) -> int:
    """The 64 bits that a stochastic cast starts from: of the key given, or drawn from a generator.

    Raises:
        FormatError: both are given.
    """
    if key is None:
        device = generator.device if generator is not None else "cpu"
        low, high = torch.randint(1 << 32, (2,), generator=generator, device=device).tolist()
        return low | high << 32
    if generator is not None:
        raise FormatError("give a key or a generator, not both.")
    if isinstance(key, StochasticKey):
        return key.value()
    try:
        return operator.index(key) & MASK64
    except TypeError:
        raise FormatError(f"a key is a StochasticKey or an integer, not {key!r}.") from None


@cache
def check_holds(dtype: torch.dtype, form: ScalarFormat) -> None:
    """Refuse a result dtype that lacks values of the format.

    Raises:
        FormatError: it does, or it is no floating dtype.
    """
    if dtype not in DTYPES:
        raise FormatError(f"results are floating-point tensors, not {dtype}.")
    holder = DTYPES[dtype]
    missing = _missing(holder, form)
    if missing:
        fitting = torch.float64 if _missing(DTYPES[torch.float32], form) else torch.float32
        raise FormatError(f"{dtype} does not hold {form.name}: {missing}. Pass dtype={fitting}.")


def _missing(holder: FloatFormat, form: ScalarFormat) -> str:
    """Which property of a format the holder lacks, or nothing."""
    fraction, lowest = _needs(form)
    if form.max > holder.max or fraction > holder.fraction_bits:
        return f"its largest value, {shown(form.max)}, is none of {holder.name}'s"
    if lowest < holder.min_octave:
        return f"its smallest value is 2^{lowest}"
    if isinstance(form, FloatFormat):
        lacks = {
            "infinity": form.has_infinity and not holder.has_infinity,
            "NaN": form.has_nan and not holder.has_nan,
            "negative zero": form.has_negative_zero and not holder.has_negative_zero,
            "zero": form.zero and not holder.zero,
        }
        return next((f"{name} is missing" for name, lacking in lacks.items() if lacking), "")
    return "" if holder.signed else "it is signed"


def _needs(form: ScalarFormat) -> tuple[int, int]:
    """Fraction bits that hold every value, and the exponent of the smallest."""
    if isinstance(form, IntFormat):
        return form.width - 2, form.step_exponent
    return form.fraction_bits, form.min_octave
