"""What a cast does at the edges, as data.

A format is a value set; what becomes of a number outside it (too large, infinite, NaN, of the wrong
sign) is decided by whoever casts, and libraries decide differently. `Rules` states the choices, and
`rules_for` has those of the standard and of the libraries by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from floatscope.errors import FormatError, unknown
from floatscope.formats import FloatFormat, Format, IntFormat
from floatscope.formats import format as format_called
from floatscope.rounding.modes import Overflow, Rounding

ScalarFormat = FloatFormat | IntFormat

NanPolicy = Literal["keep", "raise", "max", "zero", "opposite_zero"]
"""What NaN becomes: NaN, an error, the largest value, zero, or a zero of the opposite sign."""

NegativePolicy = Literal["to_nan", "magnitude", "saturate", "raise"]
"""What an unsigned format makes of a negative number: NaN, its magnitude, the smallest value."""

ZeroPolicy = Literal["to_nan", "saturate", "raise"]
"""What a format without zero makes of zero. Positive numbers below its smallest value always give
that value, the nearest there is."""


@dataclass(frozen=True)
class Rules:
    """The choices of a cast at the edges of a format."""

    name: str
    overflow: Overflow
    """A finite number that rounds beyond the largest value."""
    infinity: Overflow
    """An infinite input."""
    nan: NanPolicy
    negative: NegativePolicy = "to_nan"
    zero: ZeroPolicy = "to_nan"
    rounding: Rounding = "nearest-even"
    flush_subnormals: bool = False
    """Whether a subnormal result becomes a zero of its sign."""

    def __hash__(self) -> int:
        """Quick rather than thorough; equality looks at everything."""
        return hash((self.name, self.rounding, self.overflow))


def has_zero(form: ScalarFormat) -> bool:
    """Whether zero is a value of the format."""
    return isinstance(form, IntFormat) or form.zero


def standard(form: ScalarFormat) -> Rules:
    """The standard's own rules, and the default everywhere.

    Overflow gives what the format has for it: infinity (IEEE 754-2019, section 7.4), else NaN
    (OFP8 1.0, non-saturating mode; ml_dtypes for fnuz), else the largest value (OCP MX 1.0). NaN in
    a format without NaN is implementation-defined there, and an error here.
    """
    if isinstance(form, IntFormat) or not (form.has_infinity or form.has_nan):
        return Rules("standard", overflow="saturate", infinity="saturate", nan="raise")
    beyond: Overflow = "to_inf" if form.has_infinity else "to_nan"
    nan: NanPolicy = "keep" if form.has_nan else "raise"
    return Rules("standard", overflow=beyond, infinity=beyond, nan=nan)


def _saturating(form: ScalarFormat, nan: NanPolicy) -> Rules:
    nan = "keep" if isinstance(form, FloatFormat) and form.has_nan else nan
    return replace(standard(form), overflow="saturate", infinity="saturate", nan=nan)


_TORCH_FORMATS = "fp64 fp32 fp16 bf16 e4m3fn e4m3fnuz e5m2 e5m2fnuz e8m0fnu".split()


def _torch_2_11(form: ScalarFormat) -> Rules:
    if form.name == "e8m0fnu":
        return replace(standard(form), zero="saturate", negative="magnitude")
    return standard(form)


def _torch_2_13(form: ScalarFormat) -> Rules:
    return _saturating(form, "raise") if form.name == "e4m3fn" else _torch_2_11(form)


def _ml_dtypes(form: ScalarFormat) -> Rules:
    has_nan = isinstance(form, FloatFormat) and form.has_nan
    return standard(form) if has_nan else replace(standard(form), nan="opposite_zero")


def _cuda(form: ScalarFormat) -> Rules:
    return _saturating(form, "max")


def _te(form: ScalarFormat) -> Rules:
    return _saturating(form, "zero")


_SMALL_FLOATS = ["e2m3fn", "e3m2fn", "e2m1fn"]
_ML_DTYPES_FORMATS = (
    "fp64 fp32 fp16 bf16 e4m3fn e4m3fnuz e4m3ieee e5m2 e5m2fnuz e3m4 e4m3b11fnuz e8m0fnu"
).split()

_PRESETS: dict[str, tuple[Callable[[ScalarFormat], Rules], Sequence[str] | None]] = {
    "standard": (standard, None),
    "torch-2.11": (_torch_2_11, _TORCH_FORMATS),
    "torch-2.13": (_torch_2_13, _TORCH_FORMATS),
    "ml_dtypes": (_ml_dtypes, _ML_DTYPES_FORMATS + _SMALL_FLOATS),
    "cuda-satfinite": (_cuda, ["e4m3fn", "e5m2", *_SMALL_FLOATS]),
    "te": (_te, ["e4m3fn", "e5m2", "e2m1fn"]),
}
PRESETS = tuple(_PRESETS)
"""Names of the presets. Sources: Torch's casts up to 2.11 and from 2.12 (pytorch#178817); ml_dtypes
0.6; CUDA's cuda_fp8.h, cuda_fp6.h and cuda_fp4.h with __NV_SATFINITE; Transformer Engine 2.20 and
its Python reference of NVFP4."""


def rules_for(form: Format | str, name: str = "standard") -> Rules:
    """The rules called `name`, for a float or integer format or its name.

    Raises:
        FormatError: no such preset, or that library does not cast to the format.
    """
    if isinstance(form, str):
        form = format_called(form)
    if not isinstance(form, (FloatFormat, IntFormat)):
        raise FormatError(f"{form.name} is a block format; rules are of its element format.")
    if name not in _PRESETS:
        raise FormatError(unknown("rules", name, PRESETS))
    make, formats = _PRESETS[name]
    if formats is not None and form.name not in formats:
        raise FormatError(
            f'the rules "{name}" say nothing of {form.name}; they cover {", ".join(formats)}.'
        )
    return replace(make(form), name=name)


def resolve(
    form: ScalarFormat,
    rules: Rules | str | None = None,
    *,
    rounding: str | None = None,
    overflow: str | None = None,
    flush_subnormals: bool | None = None,
) -> Rules:
    """Rules by name, with explicit choices winning over them; `overflow` covers infinite inputs.

    Raises:
        FormatError: an unknown name, or infinity or NaN asked of a format that has none.
    """
    base = rules if isinstance(rules, Rules) else rules_for(form, rules or "standard")
    explicit = {
        "rounding": rounding,
        "overflow": overflow,
        "infinity": overflow,
        "flush_subnormals": flush_subnormals,
    }
    given = {key: value for key, value in explicit.items() if value is not None}
    resolved = replace(base, name="explicit", **given) if given else base
    _check(form, resolved)
    return resolved


def _check(form: ScalarFormat, rules: Rules) -> None:
    for what, given, choices in (
        ("rounding", rules.rounding, get_args(Rounding)),
        ("overflow policy", rules.overflow, get_args(Overflow)),
        ("overflow policy", rules.infinity, get_args(Overflow)),
        ("NaN policy", rules.nan, get_args(NanPolicy)),
        ("policy for negatives", rules.negative, get_args(NegativePolicy)),
        ("policy for zero", rules.zero, get_args(ZeroPolicy)),
    ):
        if given not in choices:
            raise FormatError(unknown(what, str(given), choices))
    is_float = isinstance(form, FloatFormat)
    has_infinity, has_nan = is_float and form.has_infinity, is_float and form.has_nan
    if rules.nan == "keep" and not has_nan:
        raise FormatError(f'{form.name} has no NaN; choose what becomes of it, or "raise".')
    for policy in (rules.overflow, rules.infinity):
        if (policy == "to_inf" and not has_infinity) or (policy == "to_nan" and not has_nan):
            raise FormatError(
                f"{form.name} has no {'infinity' if policy == 'to_inf' else 'NaN'} for overflow="
                f'"{policy}"; choose "saturate" or "raise".'
            )
