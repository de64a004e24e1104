"""Formats against ml_dtypes code by code, against the published constants, and by their algebra."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.errors import FormatError
from floatscope.formats import (
    BLOCKS,
    CATALOGUE,
    FLOATS,
    INTEGERS,
    BlockFormat,
    FloatFormat,
    IntFormat,
    Specials,
    classify,
    decode,
    encode,
    format,
    neighbors,
    ulp,
)
from floatscope.formats.values import Value, exactly
from floatscope.rounding import round_value

SMALL = [form for form in FLOATS if form.width <= 16]

ORACLES = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e4m3ieee": ml_dtypes.float8_e4m3,
    "e5m2": ml_dtypes.float8_e5m2,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e3m4": ml_dtypes.float8_e3m4,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e2m3fn": ml_dtypes.float6_e2m3fn,
    "e3m2fn": ml_dtypes.float6_e3m2fn,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
    "e8m0fnu": ml_dtypes.float8_e8m0fnu,
}


def by_name(name: str) -> FloatFormat:
    form = format(name)
    assert isinstance(form, FloatFormat)
    return form


def same(a: Value, b: float) -> bool:
    """Equal, with NaN equal to NaN and the sign of zero seen."""
    if isinstance(a, float) or not math.isfinite(b):
        return repr(float(a)) == repr(b)
    return a == Fraction(b) and not (b == 0 and math.copysign(1, b) < 0)


def test_an_oracle_for_every_small_format() -> None:
    assert {form.name for form in SMALL} == set(ORACLES)


@pytest.mark.parametrize("name", ORACLES)
def test_every_code_is_what_ml_dtypes_says(name: str) -> None:
    form, oracle = by_name(name), ORACLES[name]
    unsigned = np.uint16 if form.width == 16 else np.uint8
    with np.errstate(invalid="ignore"):  # signaling NaNs
        values = np.arange(form.num_codes, dtype=unsigned).view(oracle).astype(np.float64)
    assert len(values) == form.num_codes
    for code, value in enumerate(values.tolist()):
        assert same(decode(code, form), value), hex(code)


@pytest.mark.parametrize("name", ORACLES)
def test_every_code_decodes_and_encodes_back(name: str) -> None:
    form = by_name(name)
    for code in range(form.num_codes):
        value = decode(code, form)
        back = encode(value, form)
        if classify(code, form) == "nan":
            assert classify(back, form) == "nan"
        else:
            assert back == code, hex(code)


@pytest.mark.parametrize("name", ORACLES)
def test_neighbors_and_ulp_walk_the_whole_format(name: str) -> None:
    form = by_name(name)
    codes = (c for c in range(form.num_codes) if classify(c, form) not in ("nan", "infinite"))
    ordered = sorted({Fraction(decode(code, form)) for code in codes})
    triples = zip([None, *ordered], ordered, [*ordered[1:], None], strict=False)
    stride = 1 if form.width <= 8 else 41  # 16-bit formats: every 41st value, both ends included
    for index, (below, value, above) in enumerate(triples):
        if index % stride and above is not None:
            continue
        low, high = neighbors(value, form)
        assert low == below if below is not None else low in (None, -math.inf)
        assert high == above if above is not None else high in (None, math.inf)
        if above is not None and value >= 0:
            assert ulp(value, form) == above - value or not form.zero
            between = (value + above) / 2
            assert neighbors(between, form) == (value, above)


# numerics.md 2.1: largest, smallest normal and smallest value, eps.
TABLE = {
    "fp32": ((2 - Fraction(1, 2**23)) * 2**127, -126, -149, -23),
    "tf32": ((2 - Fraction(1, 2**10)) * 2**127, -126, -136, -10),
    "bf16": ((2 - Fraction(1, 2**7)) * 2**127, -126, -133, -7),
    "fp16": (65504, -14, -24, -10),
    "e5m2": (57344, -14, -16, -2),
    "e5m2fnuz": (57344, -15, -17, -2),
    "e4m3fn": (448, -6, -9, -3),
    "e4m3ieee": (240, -6, -9, -3),
    "e4m3fnuz": (240, -7, -10, -3),
    "e4m3b11fnuz": (30, -10, -13, -3),
    "e3m4": (Fraction(31, 2), -2, -6, -4),
    "e3m2fn": (28, -2, -4, -2),
    "e2m3fn": (Fraction(15, 2), 0, -3, -3),
    "e2m1fn": (6, 0, -1, -1),
    "e8m0fnu": (Fraction(2) ** 127, -127, -127, 0),
    "fp64": ((2 - Fraction(1, 2**52)) * 2**1023, -1022, -1074, -52),
}


@pytest.mark.parametrize("name", TABLE)
def test_published_constants(name: str) -> None:
    form = by_name(name)
    largest, normal, smallest, eps = TABLE[name]
    assert form.max == largest
    assert form.smallest_normal == Fraction(2) ** normal
    assert form.smallest == Fraction(2) ** smallest
    assert form.eps == Fraction(2) ** eps
    assert form.source


def test_octaves() -> None:
    assert by_name("fp16").num_octaves == 40
    assert by_name("bf16").num_octaves == 261
    assert by_name("e8m0fnu").num_octaves == 255


@pytest.mark.parametrize(
    ("name", "zero", "overflow", "tie_overflows"),
    [
        ("fp16", Fraction(1, 2**25), 65520, True),
        ("bf16", Fraction(1, 2**134), (2 - Fraction(1, 2**8)) * 2**127, True),
        ("e5m2", Fraction(1, 2**17), 61440, True),
        ("e4m3fn", Fraction(1, 2**10), 464, False),
        ("e4m3ieee", Fraction(1, 2**10), 248, True),
        ("e2m1fn", Fraction(1, 4), 7, True),
    ],
)
def test_thresholds(name: str, zero: Fraction, overflow: Fraction, *, tie_overflows: bool) -> None:
    form = by_name(name)
    assert form.zero_threshold == zero
    assert form.overflow_threshold == overflow
    assert form.tie_overflows is tie_overflows


def test_no_zero_no_threshold() -> None:
    with pytest.raises(FormatError, match="no zero"):
        _ = by_name("e8m0fnu").zero_threshold


@given(st.integers(0, 2**32 - 1))
def test_fp32_codes_are_the_machines(code: int) -> None:
    (value,) = struct.unpack("<f", struct.pack("<I", code))
    form = by_name("fp32")
    assert same(decode(code, form), value)
    if not math.isnan(value):
        assert encode(value, form) == code


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_fp64_neighbors_are_nextafter(value: float) -> None:
    form = by_name("fp64")
    low, high = neighbors(value, form)
    assert low == math.nextafter(value, -math.inf)
    assert high == math.nextafter(value, math.inf)
    assert ulp(value, form) == Fraction(math.ulp(value))


@given(st.fractions(), st.sampled_from(FLOATS))
def test_neighbors_enclose(value: Fraction, form: FloatFormat) -> None:
    low, high = neighbors(value, form)
    assert low is None or low < value
    assert high is None or high > value
    if form.signed:
        mirrored = neighbors(-value, form)
        assert mirrored == (None if high is None else -high, None if low is None else -low)


def test_infinities_and_nan() -> None:
    fp16, fn = by_name("fp16"), by_name("e4m3fn")
    assert encode("inf", fp16) == 0x7C00
    assert encode("-inf", fp16) == 0xFC00
    assert encode("nan", fp16) == 0x7E00
    assert encode("nan", fn) == 0x7F
    assert encode("-0", fp16) == 0x8000
    assert neighbors("inf", fp16) == (65504, None)
    assert neighbors("-inf", fn) == (None, -448)
    assert neighbors(65504, fp16)[1] == math.inf
    assert neighbors(448, fn)[1] is None
    assert neighbors(10**6, fp16) == (65504, math.inf)
    with pytest.raises(FormatError, match="e4m3fn has no infinity"):
        encode("inf", fn)
    with pytest.raises(FormatError, match="e4m3fnuz has no -0"):
        encode(-0.0, by_name("e4m3fnuz"))
    with pytest.raises(FormatError, match="e2m1fn has no NaN"):
        encode(math.nan, by_name("e2m1fn"))
    with pytest.raises(FormatError, match="NaN has no neighbors"):
        neighbors("nan", fp16)
    with pytest.raises(FormatError, match="has no ulp"):
        ulp("inf", fp16)


def test_values_that_are_not_held() -> None:
    with pytest.raises(FormatError, match=r"does not hold 0\.1 exactly.*0\.0999755859375 and"):
        encode("0.1", by_name("fp16"))
    with pytest.raises(FormatError, match="unsigned"):
        encode(-1, by_name("e8m0fnu"))
    with pytest.raises(FormatError, match="does not fit e2m1fn"):
        decode(16, by_name("e2m1fn"))
    with pytest.raises(FormatError, match="'one' is no number"):
        encode("one", by_name("fp16"))


@pytest.mark.parametrize("text", ["0x1.8p-3", "3/16", "0.1875", "1875e-4"])
def test_numbers_in_every_spelling(text: str) -> None:
    assert decode(encode(text, by_name("fp16")), by_name("fp16")) == Fraction(3, 16)


@pytest.mark.parametrize("name", ["e4m3", "fp8", "FP8", "fp6", "fp4", "mxfp8"])
def test_ambiguous_names_are_refused_with_their_meanings(name: str) -> None:
    with pytest.raises(FormatError, match="means several things") as error:
        format(name)
    assert str(error.value).count("\n") >= 2


def test_unknown_and_impossible_names() -> None:
    with pytest.raises(FormatError, match="Did you mean 'bf16'"):
        format("bf61")
    with pytest.raises(FormatError, match="1 to 15 exponent bits"):
        format("e20m3")
    with pytest.raises(FormatError, match="no finite value is left"):
        format("e1m0")


def test_formats_made_by_name() -> None:
    e5m10 = by_name("e5m10")
    fp16 = by_name("fp16")
    assert all(repr(decode(c, e5m10)) == repr(decode(c, fp16)) for c in range(0, 65536, 7))
    assert by_name("e4m2fn").specials is Specials.NONE  # 7 bits
    assert by_name("e5m2fn").specials is Specials.OUTERMOST_NAN
    assert by_name("e4m3fnuz") is CATALOGUE["e4m3fnuz"]
    assert by_name("e5m4fnuz").bias == 16
    assert format("bfloat16") is format("bf16")
    assert format("float8_e4m3fn") is format("e4m3fn")


def test_the_catalogue_is_complete() -> None:
    expected = (
        "fp64 fp32 tf32 fp16 bf16 e4m3fn e4m3fnuz e4m3ieee e5m2 e5m2fnuz e3m4 e4m3b11fnuz e2m3fn "
        "e3m2fn e2m1fn e8m0fnu int8 int4 mxfp8-e4m3 mxfp8-e5m2 mxfp6-e2m3 mxfp6-e3m2 mxfp4 mxint8 "
        "nvfp4 fp8-tensor fp8-rowwise fp8-128x128 fp8-1x128"
    )
    assert list(CATALOGUE) == expected.split()
    assert all(form.source for form in CATALOGUE.values())


@pytest.mark.parametrize("form", INTEGERS, ids=lambda f: f.name)
def test_integers(form: IntFormat) -> None:
    for code in range(form.num_codes):
        assert form.encode(form.decode(code)) == code
    assert form.max == 2 ** (form.width - 1) - 1
    assert form.min == -form.max - 1
    with pytest.raises(FormatError, match="does not hold"):
        form.encode(form.max + 1)
    with pytest.raises(FormatError, match="does not hold"):
        form.encode(Fraction(1, 2))


def test_symmetric_integers_leave_the_lowest_out() -> None:
    form = IntFormat("s", width=8, symmetric=True)
    assert form.min == -127
    with pytest.raises(FormatError, match="symmetric"):
        form.decode(0x80)


def test_blocks() -> None:
    blocks = {form.name: form for form in BLOCKS}
    assert blocks["mxfp8-e4m3"].bits_per_value == 8.25
    assert blocks["mxfp4"].bits_per_value == 4.25
    assert blocks["nvfp4"].bits_per_value == 4.5
    assert blocks["fp8-tensor"].bits_per_value is None
    assert blocks["fp8-128x128"].elements_per_scale == 16384
    assert blocks["mxint8"].element.max == Fraction(127, 64)
    with pytest.raises(FormatError, match="has no elements"):
        BlockFormat(
            "x",
            element=by_name("e2m1fn"),
            block=(1, 0),
            scale=by_name("e8m0fnu"),
            rule=blocks["mxfp4"].rule,
        )


def test_impossible_formats() -> None:
    with pytest.raises(FormatError, match="at least 1 exponent bit"):
        FloatFormat("x", exponent_bits=0, fraction_bits=3, bias=1, specials=Specials.NONE)
    with pytest.raises(FormatError, match="both a sign and a zero, or neither"):
        FloatFormat(
            "x", exponent_bits=4, fraction_bits=3, bias=1, specials=Specials.IEEE, signed=False
        )
    with pytest.raises(FormatError, match="negative zero to give up"):
        FloatFormat(
            "x", exponent_bits=4, fraction_bits=3, bias=8, signed=False,
            zero=False,
            specials=Specials.NEGATIVE_ZERO_NAN,
        )  # fmt: skip
    with pytest.raises(FormatError, match="powers of two alone"):
        FloatFormat(
            "x", exponent_bits=4, fraction_bits=3, bias=7, signed=False,
            zero=False,
            specials=Specials.OUTERMOST_NAN,
        )  # fmt: skip
    with pytest.raises(TypeError):
        FloatFormat("x", 4, 3)  # type: ignore[misc]


@pytest.mark.parametrize(
    "form",
    [
        *FLOATS,
        *map(by_name, "e3m0 e7m0 e3m0fn e3m0fnuz e1m1 e1m0fn e2m1 e4m0fn e15m0 e6m9".split()),
    ],
    ids=lambda form: form.name,
)
def test_thresholds_are_those_of_rounding(form: FloatFormat) -> None:
    beyond, nudge = form.overflow_threshold, form.smallest / 2**200
    unlimited = replace(form, name="wide", exponent_bits=form.exponent_bits + 1)
    for value, overflows in (
        (beyond - nudge, False),
        (beyond, form.tie_overflows),
        (beyond + nudge, True),
    ):
        assert (round_value(value, unlimited) > form.max) is overflows
        if form.has_infinity or form.has_nan:
            rounded = round_value(value, form)
            assert isinstance(rounded, float) is overflows  # infinite or NaN
    if form.zero:
        assert round_value(form.zero_threshold, form) == 0
        assert round_value(form.zero_threshold + nudge, form) == form.smallest


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x1.00200000000000001p0", 1 + Fraction(1, 2**11) + Fraction(1, 2**68)),
        ("0x1p-1080", Fraction(1, 2**1080)),
        ("0x1P2000", Fraction(2) ** 2000),
        ("-0x.8", Fraction(-1, 2)),
        ("0x1.e99999", Fraction(0x1E99999, 16**6)),
        ("1e20000", Fraction(10) ** 20000),
        (" +1_0.5e0_1 ", Fraction(105)),
    ],
)
def test_texts_are_read_exactly(text: str, value: Fraction) -> None:
    assert exactly(text) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_hex_floats_are_pythons(value: float) -> None:
    assert same(exactly(value.hex()), value)


def test_negative_zero_in_every_spelling() -> None:
    assert [repr(exactly(text)) for text in ("-0", "-0x0p0", "-0.0e5")] == ["-0.0"] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1e20001", "the exponent of '1e20001' lies beyond every format; it may be 20000 either"),
        ("-1e-999999999", "lies beyond every format"),
        ("0x1p999999999", "lies beyond every format"),
        ("1" * 5000, "'1{39}…' has 5000 characters; a number may have 4000"),
        ("x" * 100, "'x{39}…' is no number"),
        ("0x", "'0x' is no number"),
        ("0x.p1", "is no number"),
        ("1p5", "is no number"),
        ("0x1/0x2", "is no number"),
        ("1/0", "is no number"),
    ],
)
def test_texts_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        exactly(text)


def test_messages_stay_short_however_long_the_number() -> None:
    for value in (Fraction(1, 3**5000), 10**4500 + 1, Fraction(7) ** 5000):
        with pytest.raises(FormatError, match="does not hold ≈"):
            encode(value, by_name("e15m112"))
    with pytest.raises(FormatError, match="does not hold ≈1e4500"):
        INTEGERS[0].encode(10**4500)
    with pytest.raises(FormatError, match="code 0xf{37}… does not fit fp16"):
        decode(16**1000 - 1, by_name("fp16"))
