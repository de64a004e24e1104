"""The oracle of rounding: against ml_dtypes, NumPy, published thresholds and its algebra."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from floatscope.errors import FormatError
from floatscope.formats import FLOATS, FloatFormat, IntFormat, classify, decode, neighbors, ulp
from floatscope.formats.values import Value
from floatscope.rounding import Rounding, round_value, rules_for
from floatscope.rounding.reference import HALF
from tests.test_formats import ORACLES, by_name, same

SMALL = [form for form in FLOATS if form.width <= 8 and form.zero]
MODES = [m for m in get_args(Rounding) if m != "stochastic"]


def policy(form: FloatFormat) -> str:
    """What ml_dtypes does on overflow."""
    return "to_inf" if form.has_infinity else "to_nan" if form.has_nan else "saturate"


def probes(form: FloatFormat) -> list[float]:
    """Every tie of the format, its fp64 neighbors, every value, and what lies beyond."""
    finite = [
        Fraction(decode(c, form))
        for c in range(form.num_codes)
        if classify(c, form) not in ("nan", "infinite")
    ]
    ordered = sorted(set(finite))
    ordered += [form.max + 2 * (form.overflow_threshold - form.max)]
    points = []
    for below, above in itertools.pairwise(ordered):
        tie = float((below + above) / 2)
        points += [tie, math.nextafter(tie, -math.inf), math.nextafter(tie, math.inf), float(below)]
    return points + [-p for p in points] + [1e30, -1e30, math.inf, -math.inf, -0.0]


@pytest.mark.parametrize("form", SMALL, ids=lambda f: f.name)
def test_ties_and_neighbors_agree_with_ml_dtypes(form: FloatFormat) -> None:
    points = np.array(probes(form))
    # ml_dtypes rounds fp64 by way of fp32, so the comparison is made on fp32 inputs.
    points = points.astype(np.float32)
    with np.errstate(all="ignore"):
        theirs = points.astype(ORACLES[form.name]).astype(np.float64)
    for point, their in zip(points.tolist(), theirs.tolist(), strict=True):
        ours = round_value(point, form, overflow=policy(form))  # type: ignore[arg-type]
        if form.name in ("e2m3fn", "e3m2fn", "e2m1fn") and math.isinf(point):
            continue  # OCP leaves infinite inputs to the implementation
        assert same(ours, their), (point, ours, their)


@given(st.floats(width=32))
def test_fp16_agrees_with_numpy(value: float) -> None:
    with np.errstate(over="ignore"):
        their = float(np.float32(value).astype(np.float16))
    assert same(round_value(value, by_name("fp16"), overflow="to_inf"), their)


@given(st.floats(width=32))
def test_bf16_agrees_with_ml_dtypes(value: float) -> None:
    their = float(np.float32(value).astype(ml_dtypes.bfloat16))
    assert same(round_value(value, by_name("bf16"), overflow="to_inf"), their)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("fp16", "65519.99", 65504),
        ("e5m2", 61439, 57344),
        ("e4m3fn", 464, 448),
        ("e4m3ieee", 247, 240),
        ("fp16", Fraction(1, 2**25), 0),
        ("fp16", Fraction(1, 2**25) + Fraction(1, 2**60), Fraction(1, 2**24)),
        ("e2m1fn", "0.25", 0),
        ("e2m1fn", "0.75", 1),
        ("e2m1fn", "1.25", 1),
        ("e2m1fn", "1.75", 2),
        ("e2m1fn", "2.5", 2),
        ("e2m1fn", "3.5", 4),
        ("e2m1fn", 5, 4),
        ("e2m1fn", "5.01", 6),
        ("e2m1fn", "0.249999985", 0),
        ("e4m3fn", "1.0625", 1),
        ("e4m3fn", "1.1875", "1.25"),
        ("e4m3fn", Fraction(10001, 10000) / 2**10, Fraction(1, 2**9)),  # no hop through bf16
        ("e4m3fn", "431.99", 416),  # no hop through fp16
        ("e8m0fnu", "1.5", 2),
        ("e8m0fnu", 3, 4),
        ("e8m0fnu", 6, 8),
    ],
)
def test_published_thresholds(name: str, value: str, expected: str) -> None:
    assert round_value(value, by_name(name), overflow="saturate") == Fraction(expected)


def test_overflow_is_a_choice() -> None:
    fn, fp16 = by_name("e4m3fn"), by_name("fp16")
    assert round_value(465, fn, overflow="saturate") == 448
    assert math.isnan(float(round_value(465, fn, overflow="to_nan")))
    assert round_value(65520, fp16, overflow="to_inf") == math.inf
    assert round_value(-65520, fp16, overflow="saturate") == -65504
    assert round_value("inf", fp16, overflow="saturate") == 65504
    with pytest.raises(FormatError, match="beyond the largest value of e4m3fn"):
        round_value(465, fn, overflow="raise")
    with pytest.raises(FormatError, match='e4m3fn has no infinity for overflow="to_inf"'):
        round_value(1, fn, overflow="to_inf")
    with pytest.raises(FormatError, match="e2m1fn has no NaN for overflow"):
        round_value(1, by_name("e2m1fn"), overflow="to_nan")
    with pytest.raises(FormatError, match="e2m1fn has no NaN"):
        round_value("nan", by_name("e2m1fn"), overflow="saturate")
    with pytest.raises(FormatError, match="Did you mean 'nearest-even'"):
        round_value(1, fn, rounding="nearest", overflow="saturate")  # type: ignore[arg-type]


def test_directed_modes_stay_finite_where_ieee_says_so() -> None:
    fp16 = by_name("fp16")
    assert round_value(10**6, fp16, rounding="toward-zero", overflow="to_inf") == 65504
    assert round_value(10**6, fp16, rounding="down", overflow="to_inf") == 65504
    assert round_value(10**6, fp16, rounding="up", overflow="to_inf") == math.inf
    assert round_value(-(10**6), fp16, rounding="up", overflow="to_inf") == -65504
    assert round_value(-(10**6), fp16, rounding="down", overflow="to_inf") == -math.inf


def test_zero_keeps_its_sign_where_the_format_can() -> None:
    assert repr(round_value("-1e-10", by_name("e4m3fn"), overflow="saturate")) == "-0.0"
    assert round_value("-1e-10", by_name("e4m3fnuz"), overflow="saturate") == Fraction(0)
    assert repr(round_value(-0.0, by_name("fp16"), overflow="to_inf")) == "-0.0"


def test_a_format_without_zero_or_sign_needs_rules() -> None:
    e8m0 = by_name("e8m0fnu")
    smallest = Fraction(1, 2**127)
    for value in (0, -0.0, -1, -math.inf):
        assert math.isnan(float(round_value(value, e8m0)))
    assert round_value(0, e8m0, "torch-2.13") == smallest
    assert round_value(-1, e8m0, "torch-2.13") == 1
    for tiny in (Fraction(1, 2**128), Fraction(1, 2**140)):
        for mode in MODES:
            assert round_value(tiny, e8m0, rounding=mode) == smallest  # type: ignore[arg-type]
    strict = replace(rules_for(e8m0), zero="raise", negative="raise")
    for value, what in ((0, "zero"), (-1, "-1")):
        with pytest.raises(FormatError, match=f"e8m0fnu holds no {what}"):
            round_value(value, e8m0, strict)


def test_presets_decide_what_the_standard_leaves_open() -> None:
    fn, fp4 = by_name("e4m3fn"), by_name("e2m1fn")
    assert math.isnan(float(round_value(500, fn)))
    assert math.isnan(float(round_value("inf", fn, "torch-2.11")))
    for name in ("torch-2.13", "cuda-satfinite", "te"):
        assert round_value(500, fn, name) == round_value("inf", fn, name) == 448
    assert round_value("-inf", fp4) == -6
    assert round_value("nan", fp4, "cuda-satfinite") == 6
    assert repr(round_value("nan", fp4, "ml_dtypes")) == "-0.0"
    assert round_value("nan", fp4, "te") == 0
    with pytest.raises(FormatError, match='rules "torch-2.13" say nothing of e2m1fn'):
        round_value(1, fp4, "torch-2.13")
    with pytest.raises(FormatError, match="Did you mean 'torch-2.13'"):
        round_value(1, fn, "torch-2.14")


def test_integers() -> None:
    int4 = IntFormat("int4", width=4)
    given = ["-9", "-8.5", "-8.4", "-2.5", "-0.5", "0.5", "1.5", "7.5", "inf", "-inf"]
    assert [round_value(v, int4) for v in given] == [-8, -8, -8, -2, 0, 0, 2, 7, 7, -8]
    with pytest.raises(FormatError, match="int4 has no NaN"):
        round_value("nan", int4)


def test_flushing() -> None:
    fp16 = by_name("fp16")
    below = Fraction(1, 2**15)
    assert round_value(below, fp16, overflow="to_inf") == below
    assert round_value(below, fp16, overflow="to_inf", flush_subnormals=True) == 0
    assert repr(round_value(-below, fp16, overflow="to_inf", flush_subnormals=True)) == "-0.0"
    assert round_value(2 * below, fp16, overflow="to_inf", flush_subnormals=True) == 2 * below


anything = st.fractions() | st.floats(allow_nan=False, allow_infinity=False).map(Fraction)
formats = st.sampled_from([f for f in FLOATS if f.zero])
modes = st.sampled_from(MODES)


def rounded(value: Value, form: FloatFormat, mode: str) -> Fraction:
    return Fraction(round_value(value, form, rounding=mode, overflow="saturate"))  # type: ignore[arg-type]


@given(anything, formats, modes)
def test_idempotent(value: Fraction, form: FloatFormat, mode: str) -> None:
    once = rounded(value, form, mode)
    assert rounded(once, form, mode) == once


@given(anything, anything, formats, modes)
def test_monotone(a: Fraction, b: Fraction, form: FloatFormat, mode: str) -> None:
    low, high = sorted((a, b))
    assert rounded(low, form, mode) <= rounded(high, form, mode)


@given(anything, formats)
def test_nearest_is_within_half_an_ulp(value: Fraction, form: FloatFormat) -> None:
    assume(abs(value) <= form.max)
    for mode in ("nearest-even", "nearest-away"):
        assert abs(rounded(value, form, mode) - value) <= ulp(value, form) / 2


@given(anything, formats, modes)
def test_mirror(value: Fraction, form: FloatFormat, mode: str) -> None:
    mirrored = {"up": "down", "down": "up"}.get(mode, mode)
    assert rounded(-value, form, mirrored) == -rounded(value, form, mode)


@given(anything, formats, modes)
def test_the_result_is_the_value_or_a_neighbor(
    value: Fraction, form: FloatFormat, mode: str
) -> None:
    assume(abs(value) <= form.max)
    assert rounded(value, form, mode) in (value, *neighbors(value, form))


@given(anything, formats)
def test_odd_then_nearest_is_nearest(value: Fraction, form: FloatFormat) -> None:
    """Rounding to odd with two bits to spare makes double rounding harmless."""
    wide = FloatFormat(
        "wide",
        exponent_bits=15,
        fraction_bits=form.fraction_bits + 2,
        bias=(1 << 14) - 1,
        specials=by_name("fp32").specials,
    )
    assume(wide.smallest_normal < abs(value) <= wide.max)
    assume(form.smallest_normal <= abs(value) <= form.max)
    through = rounded(rounded(value, wide, "to-odd"), form, "nearest-even")
    assert through == rounded(value, form, "nearest-even")


@given(anything, formats, st.integers(1, 6))
def test_stochastic_rounding_is_unbiased(value: Fraction, form: FloatFormat, bits: int) -> None:
    """Over all random numbers of a few bits the mean is the value to within half of one."""
    assume(abs(value) <= form.max)
    results = [
        Fraction(
            round_value(
                value,
                form,
                rounding="stochastic",
                overflow="saturate",
                random=k,
                random_bits=bits,
            )
        )
        for k in range(1 << bits)
    ]
    error = abs(sum(results) / len(results) - value)
    assert error <= ulp(value, form) * (HALF / len(results) + Fraction(1, 2**32))
    assert set(results) <= {value, *neighbors(value, form)}


def test_stochastic_rounding_needs_its_random_number() -> None:
    with pytest.raises(FormatError, match=r"random number below 2\^32"):
        round_value("0.1", by_name("fp16"), rounding="stochastic")
