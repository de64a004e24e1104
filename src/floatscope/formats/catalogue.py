"""The named formats, each with the document that defines it."""

from __future__ import annotations

from collections.abc import Iterable

from floatscope.formats.block_format import BlockFormat, ScaleRule
from floatscope.formats.float_format import FloatFormat, Specials
from floatscope.formats.int_format import IntFormat

Format = FloatFormat | IntFormat | BlockFormat

_IEEE = "IEEE 754-2019, table 3.5"
_OCP8 = "OCP 8-bit Floating Point Specification (OFP8) 1.0, table 1"
_OCP_MX = "OCP Microscaling Formats (MX) 1.0, section 5"
_FNUZ = "Noune et al. 2022 (arXiv 2206.02915); ml_dtypes"
_ML_DTYPES = "ml_dtypes README, Specifications of implemented floating point formats"


def _float(
    name: str, exponent: int, fraction: int, bias: int, specials: Specials, source: str
) -> FloatFormat:
    return FloatFormat(
        name,
        exponent_bits=exponent,
        fraction_bits=fraction,
        bias=bias,
        specials=specials,
        source=source,
    )


FP32 = _float("fp32", 8, 23, 127, Specials.IEEE, f"{_IEEE}, binary32")
E4M3FN = _float("e4m3fn", 4, 3, 7, Specials.OUTERMOST_NAN, _OCP8)
E5M2 = _float("e5m2", 5, 2, 15, Specials.IEEE, _OCP8)
E2M3FN = _float("e2m3fn", 2, 3, 1, Specials.NONE, _OCP_MX)
E3M2FN = _float("e3m2fn", 3, 2, 3, Specials.NONE, _OCP_MX)
E2M1FN = _float("e2m1fn", 2, 1, 1, Specials.NONE, _OCP_MX)
E8M0FNU = FloatFormat(
    "e8m0fnu",
    exponent_bits=8,
    fraction_bits=0,
    bias=127,
    specials=Specials.OUTERMOST_NAN,
    signed=False,
    zero=False,
    source=f"{_OCP_MX}.4 (scale)",
)
MXINT8_ELEMENT = IntFormat(
    "mxint8-element", width=8, step_exponent=-6, source=f"{_OCP_MX}.3, implied scale 2^-6"
)

FLOATS: tuple[FloatFormat, ...] = (
    _float("fp64", 11, 52, 1023, Specials.IEEE, f"{_IEEE}, binary64"),
    FP32,
    _float("tf32", 8, 10, 127, Specials.IEEE, "NVIDIA A100 Tensor Core GPU Architecture, 2020"),
    _float("fp16", 5, 10, 15, Specials.IEEE, f"{_IEEE}, binary16"),
    _float("bf16", 8, 7, 127, Specials.IEEE, "Intel BFLOAT16 Hardware Numerics Definition, 2018"),
    E4M3FN,
    _float("e4m3fnuz", 4, 3, 8, Specials.NEGATIVE_ZERO_NAN, _FNUZ),
    _float("e4m3ieee", 4, 3, 7, Specials.IEEE, f"{_ML_DTYPES}, float8_e4m3"),
    E5M2,
    _float("e5m2fnuz", 5, 2, 16, Specials.NEGATIVE_ZERO_NAN, _FNUZ),
    _float("e3m4", 3, 4, 3, Specials.IEEE, f"{_ML_DTYPES}, float8_e3m4"),
    _float(
        "e4m3b11fnuz", 4, 3, 11, Specials.NEGATIVE_ZERO_NAN, f"{_ML_DTYPES}, float8_e4m3b11fnuz"
    ),
    E2M3FN,
    E3M2FN,
    E2M1FN,
    E8M0FNU,
)

INTEGERS: tuple[IntFormat, ...] = (
    IntFormat("int8", width=8, source="two's complement"),
    IntFormat("int4", width=4, source="two's complement"),
)


def _mx(name: str, element: FloatFormat | IntFormat, rule: ScaleRule) -> BlockFormat:
    return BlockFormat(
        name, element=element, block=(1, 32), scale=E8M0FNU, rule=rule, source=f"{_OCP_MX}.2, 6.3"
    )


def _fp8(name: str, block: tuple[int, int] | str, rule: ScaleRule, source: str) -> BlockFormat:
    return BlockFormat(name, element=E4M3FN, block=block, scale=FP32, rule=rule, source=source)


_TE = "NVIDIA Transformer Engine, FP8 current scaling"
_DEEPSEEK = "DeepSeek-V3 Technical Report (arXiv 2412.19437), section 3.3.2"

BLOCKS: tuple[BlockFormat, ...] = (
    _mx("mxfp8-e4m3", E4M3FN, ScaleRule.FLOOR),
    _mx("mxfp8-e5m2", E5M2, ScaleRule.FLOOR),
    _mx("mxfp6-e2m3", E2M3FN, ScaleRule.FLOOR),
    _mx("mxfp6-e3m2", E3M2FN, ScaleRule.FLOOR),
    _mx("mxfp4", E2M1FN, ScaleRule.FLOOR),
    _mx("mxint8", MXINT8_ELEMENT, ScaleRule.FLOOR),
    BlockFormat(
        "nvfp4",
        element=E2M1FN,
        block=(1, 16),
        scale=E4M3FN,
        rule=ScaleRule.NVFP4,
        tensor_scale=FP32,
        source="NVIDIA, Pretraining Large Language Models with NVFP4 (arXiv 2509.25149)",
    ),
    _fp8("fp8-tensor", "tensor", ScaleRule.AMAX, _TE),
    _fp8("fp8-rowwise", "row", ScaleRule.AMAX, "torchao, float8 rowwise scaling"),
    _fp8("fp8-128x128", (128, 128), ScaleRule.AMAX_DIVIDE, f"{_DEEPSEEK}, weights"),
    _fp8("fp8-1x128", (1, 128), ScaleRule.AMAX_DIVIDE, f"{_DEEPSEEK}, activations"),
)


def _by_name(formats: Iterable[Format]) -> dict[str, Format]:
    return {form.name: form for form in formats}


CATALOGUE: dict[str, Format] = _by_name((*FLOATS, *INTEGERS, *BLOCKS))
