"""From a name to a format: the catalogue, any eXmY, and names that mean too many things."""

from __future__ import annotations

import re

from floatscope.errors import FormatError, unknown
from floatscope.formats.catalogue import CATALOGUE, Format
from floatscope.formats.float_format import FloatFormat, Specials

ALIASES = {
    "float64": "fp64", "double": "fp64", "binary64": "fp64",
    "float32": "fp32", "float": "fp32", "single": "fp32", "binary32": "fp32",
    "tensorfloat32": "tf32",
    "float16": "fp16", "half": "fp16", "binary16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3fn", "float8_e4m3fnuz": "e4m3fnuz", "float8_e4m3": "e4m3ieee",
    "float8_e5m2": "e5m2", "float8_e5m2fnuz": "e5m2fnuz", "float8_e3m4": "e3m4",
    "float8_e4m3b11fnuz": "e4m3b11fnuz", "float8_e8m0fnu": "e8m0fnu",
    "float6_e2m3fn": "e2m3fn", "float6_e3m2fn": "e3m2fn", "float4_e2m1fn": "e2m1fn",
}  # fmt: skip

AMBIGUOUS = {
    "e4m3": (
        "e4m3fn, largest value 448 (OCP, Torch, Transformer Engine, torchao, gfloat)",
        "e4m3ieee, 240 with infinities (ml_dtypes' float8_e4m3, mptorch, pychop)",
        "e4m3fnuz, 240 with bias 8 (AMD, Graphcore)",
        "240 with bias 8 and no special codes (unit-scaling)",
        "480 without NaN (qtorch)",
    ),
    "e8m0": (
        "e8m0fnu, powers of two without sign and zero (OCP MX scales)",
        "8 exponent bits, no fraction, IEEE-like: made by FloatFormat(...) if it is meant",
    ),
    "fp8": (
        "e4m3fn or e5m2 as plain casts",
        "fp8-tensor, fp8-rowwise, fp8-1x128 or fp8-128x128 with fp32 scales",
        "mxfp8-e4m3 or mxfp8-e5m2 with power-of-two block scales",
    ),
    "fp6": ("e2m3fn or e3m2fn as plain casts", "mxfp6-e2m3 or mxfp6-e3m2 with block scales"),
    "fp4": ("e2m1fn as a plain cast", "mxfp4 or nvfp4 with block scales"),
    "mxfp8": ("mxfp8-e4m3, largest element 448", "mxfp8-e5m2, largest element 57 344"),
    "mxfp6": ("mxfp6-e2m3, largest element 7.5", "mxfp6-e3m2, largest element 28"),
}

_EXMY = re.compile(r"e(\d+)m(\d+)(fn|fnuz)?")
_LARGEST = 15
"""Exponent bits of the largest format made by name: binary128's."""


def format(name: str) -> Format:
    """The format called `name`.

    Besides the catalogue it knows the names of Torch and ml_dtypes, and any `eXmY` with X exponent
    and Y fraction bits: IEEE-like, `eXmYfn` (no infinity; one NaN at the outermost code from 8 bits
    on, none below), `eXmYfnuz` (no infinity, no negative zero, bias one larger).

    Raises:
        FormatError: unknown or impossible, or a name that means several formats.
    """
    key = name.strip().lower()
    key = ALIASES.get(key, key)
    if key in CATALOGUE:
        return CATALOGUE[key]
    if key in AMBIGUOUS:
        meanings = "".join(f"\n  {meaning}" for meaning in AMBIGUOUS[key])
        raise FormatError(f"{name!r} means several things; say which:{meanings}")
    if match := _EXMY.fullmatch(key):
        exponent, fraction = int(match[1]), int(match[2])
        return _made(key, exponent, fraction, match[3] or "")
    raise FormatError(unknown("format", name, [*CATALOGUE, "eXmY, eXmYfn, eXmYfnuz"]))


def _made(name: str, exponent: int, fraction: int, suffix: str) -> FloatFormat:
    if not 1 <= exponent <= _LARGEST or fraction > 112:
        raise FormatError(
            f"{name}: a format made by name has 1 to {_LARGEST} exponent bits and 0 to 112 "
            "fraction bits."
        )
    width = 1 + exponent + fraction
    specials = {
        "": Specials.IEEE,
        "fn": Specials.OUTERMOST_NAN if width >= 8 else Specials.NONE,
        "fnuz": Specials.NEGATIVE_ZERO_NAN,
    }[suffix]
    bias = (1 << (exponent - 1)) - 1 + (suffix == "fnuz")
    return FloatFormat(
        name,
        exponent_bits=exponent,
        fraction_bits=fraction,
        bias=bias,
        specials=specials,
        source="made by name, with ml_dtypes' meaning of the suffix",
    )
