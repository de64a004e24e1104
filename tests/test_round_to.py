"""`round_to`: every backend against the oracle, the libraries, and its own promises."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.formats import FLOATS, INTEGERS, FloatFormat, classify, decode
from floatscope.formats import format as format_called
from floatscope.rounding import (
    PRESETS,
    Receipt,
    Rounding,
    round_to,
    round_value,
    rules_for,
)
from floatscope.rounding.anywhere import round_anywhere
from floatscope.rounding.cast import cast_to, check_holds
from floatscope.rounding.on_cpu import round_cpu
from floatscope.rounding.random_bits import random_bits
from floatscope.rounding.rules import ScalarFormat
from tests.test_formats import by_name

MODES: list[Any] = list(get_args(Rounding))
SCALARS: list[ScalarFormat] = [
    *FLOATS,
    *INTEGERS,
    *map(format_called, ("e7m9", "e6m3fnuz", "e8m3fnuz", "e1m2", "e4m0", "e11m10")),
]  # type: ignore[list-item]
ids = [form.name for form in SCALARS]


def points(form: ScalarFormat, dtype: torch.dtype) -> Tensor:
    """Values, ties and neighbors of a format, its ends, and every kind of special input."""
    rng = np.random.default_rng(1)
    if isinstance(form, FloatFormat):
        codes = range(form.num_codes) if form.width <= 8 else _some_codes(form)
        finite = {
            abs(Fraction(decode(code, form)))
            for code in codes
            if classify(code, form) not in ("nan", "infinite")
        }
        ends = [form.max, form.overflow_threshold, 2 * form.max, form.smallest, form.smallest / 2]
        ends += [form.smallest_normal, form.smallest_normal / 2, form.smallest / 4]
    else:
        finite = {Fraction(code) * form.step for code in range(1 << (form.width - 1))}
        ends = [form.max + form.step / 2, form.max + form.step, form.max + 3 * form.step / 2]
    ordered = sorted(finite)
    ties = [(a + b) / 2 for a, b in itertools.pairwise(ordered)]
    exact = [float(v) for v in (*ordered, *ties, *ends) if v < 2**1023]
    number = np.float32 if dtype == torch.float32 else np.float64
    tiny = np.array([0.0, 1e-45, 1e-40, np.inf, np.nan], number)
    spread = rng.integers(0, 1 << 32, 500, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        near = np.array(exact, number)
        around = [np.nextafter(near, number(0)), np.nextafter(near, number(np.inf))]
        both = np.concatenate([near, *around, spread.astype(number), tiny])
    return torch.from_numpy(np.concatenate([both, -both]))


def _some_codes(form: FloatFormat) -> list[int]:
    rng = np.random.default_rng(0)
    edges = {0, 1, 2, 3, (form.sign_mask or form.num_codes) - 1}
    hidden = 1 << form.fraction_bits
    edges |= {hidden - 1, hidden, hidden + 1, 2 * hidden}
    random = {int(c) for c in rng.integers(0, form.num_codes - 1, 60, dtype=np.uint64)}
    return sorted(edges | random | {c + 1 for c in random})


def equal(ours: Tensor, theirs: Tensor) -> None:
    """The same bits, with all NaNs alike."""
    different = ~((ours == theirs) & (ours.signbit() == theirs.signbit()))
    different &= ~(ours.isnan() & theirs.isnan())
    assert not different.any(), (
        different.nonzero()[:5],
        ours[different][:5],
        theirs[different][:5],
    )


def holding(form: ScalarFormat, dtype: torch.dtype) -> torch.dtype:
    try:
        check_holds(dtype, form)
    except FormatError:
        return torch.float64
    return dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", SCALARS, ids=ids)
def test_backends_equal_the_oracle(form: ScalarFormat, mode: Any, dtype: torch.dtype) -> None:
    rules = rules_for(form)
    x = points(form, dtype)
    if rules.nan == "raise":
        x = x[~x.isnan()]
    key, bits = 0x0123_4567_89AB_CDEF, 32 if len(form.name) % 2 else 7
    expected = torch.tensor(
        [
            float(
                round_value(
                    value,
                    form,
                    rounding=mode,
                    random=random_bits(key, i) >> (32 - bits),
                    random_bits=bits,
                )
            )
            for i, value in enumerate(x.tolist())
        ],
        dtype=torch.float64,
    )
    target = holding(form, dtype)
    ours = round_to(x, form, rounding=mode, key=key, random_bits=bits, dtype=target)
    equal(ours.double(), expected)
    cast = cast_to(form, None, mode, None, None)
    cast = type(cast)(cast.form, cast.rules, key, bits)
    elsewhere = torch.empty_like(ours)
    counts = round_anywhere(x, elsewhere, cast)
    equal(elsewhere.double(), expected)
    assert counts.tolist() == round_cpu(x, torch.empty_like(ours), cast).tolist()


def covers(name: str, form: ScalarFormat) -> bool:
    try:
        rules_for(form, name)
    except FormatError:
        return False
    return True


def test_random_bits_change_words_at_every_2_to_the_32() -> None:
    x = torch.rand(50) + 1
    cast = replace(cast_to("e4m3fn", None, "stochastic", None, None), key=3)
    for offset in (2**32 - 10, 2**40 - 1, 5 * 2**32):
        here, there = torch.empty_like(x), torch.empty_like(x)
        round_cpu(x, here, cast, offset)
        round_anywhere(x, there, cast, offset)
        equal(here, there)


PRESET_FORMATS = [(name, form) for name in PRESETS for form in SCALARS if covers(name, form)]


@pytest.mark.parametrize(("name", "form"), PRESET_FORMATS, ids=lambda v: getattr(v, "name", v))
def test_presets_in_the_kernels(name: str, form: ScalarFormat) -> None:
    rules = rules_for(form, name)
    tops = torch.tensor([float(form.max)])
    ends = [math.inf, -math.inf, math.nan, -math.nan, 0.0, -0.0, -1.0, 1e-40, -1e-40, 1.0]
    x = torch.cat([torch.tensor(ends), tops, -tops, 1.2 * tops, -1.2 * tops])
    if rules.nan == "raise":
        with pytest.raises(FormatError, match=f"{form.name} has no NaN, and 2 of 14"):
            round_to(x, form, name, dtype=holding(form, torch.float32))
        x = x[~x.isnan()]
    signed = [math.copysign(math.nan, s) if v != v else v for v, s in _with_signs(x)]
    expected = [float(round_value(value, form, name)) for value in signed]
    ours = round_to(x, form, name, dtype=holding(form, torch.float32))
    equal(ours.double(), torch.tensor(expected, dtype=torch.float64))


def _with_signs(x: Tensor) -> list[tuple[float, float]]:
    return [(v, -1.0 if s else 1.0) for v, s in zip(x.tolist(), x.signbit().tolist(), strict=True)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("form", "their"),
    [
        ("fp16", torch.float16),
        ("bf16", torch.bfloat16),
        ("e4m3fn", torch.float8_e4m3fn),
        ("e5m2", torch.float8_e5m2),
        ("e4m3fnuz", torch.float8_e4m3fnuz),
        ("e5m2fnuz", torch.float8_e5m2fnuz),
    ],
)
def test_every_16_bit_input_and_a_sample_agree_with_torch(
    form: str, their: torch.dtype, dtype: torch.dtype
) -> None:
    if dtype == torch.float32:
        x = points(by_name(form), dtype)
    else:
        x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    expected = x.to(their).float()
    equal(round_to(x, form, "torch-2.13", dtype=torch.float32), expected)
    if holding(by_name(form), dtype) == dtype:
        same = round_to(x, form, "torch-2.13")
        assert same.dtype == dtype
        equal(same.float(), expected)


def test_receipts_count_what_happened() -> None:
    x = torch.tensor([1e6, -1e6, math.inf, math.nan, 1e-9, -1e-9, -0.0, 1.0])
    expected = {
        "e4m3fn": Receipt(8, overflowed=2, infinite=1, nan=1, became_nan=3, flushed=2),
        "e4m3fnuz": Receipt(
            8, overflowed=2, infinite=1, nan=1, became_nan=3, flushed=2, lost_sign=2
        ),
    }
    for name, receipt in expected.items():
        total = Receipt()
        round_to(x, name, receipt=total)
        assert total == receipt
        round_to(x, name, receipt=total)
        assert total == receipt + receipt
    saturating = Receipt()
    round_to(x, "e4m3fn", overflow="saturate", receipt=saturating)
    assert saturating == Receipt(8, overflowed=2, infinite=1, nan=1, saturated=3, flushed=2)
    big = torch.full((3_000_001,), 1e6)
    many = Receipt()
    round_to(big, "fp16", receipt=many)
    assert many.overflowed == many.elements == 3_000_001


def test_numpy_arrays() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64, np.float16):
        x = rng.standard_normal((7, 11)).astype(dtype)
        expected = round_to(torch.from_numpy(x), "e4m3fn").numpy()
        for array in (x, x[::-1][::-1], x.astype(x.dtype.newbyteorder(">")), np.asfortranarray(x)):
            result = round_to(array, "e4m3fn")
            assert isinstance(result, np.ndarray)
            assert np.array_equal(result, expected)
        frozen = x.copy()
        frozen.flags.writeable = False
        assert np.array_equal(round_to(frozen, "e4m3fn"), expected)
        assert np.array_equal(round_to(x[::-1], "e4m3fn"), expected[::-1])
        out = np.empty_like(x)
        assert round_to(x, "e4m3fn", out=out) is out
        assert np.array_equal(out, expected)
    assert np.array_equal(x, x.astype(np.float16))  # untouched
    scalar = round_to(np.array(1.3, np.float32), "e5m2")
    assert scalar.shape == ()
    assert scalar == 1.25


@pytest.mark.parametrize("mode", MODES)
def test_large_and_misaligned_tensors(mode: Any) -> None:
    """Large outputs are stored past the caches, if they are aligned; several threads take part."""
    storage = torch.randn((1 << 22) + 77, generator=torch.Generator().manual_seed(0)) * 100
    for x in (storage, storage[1:], storage[:1003][5:]):
        out = torch.zeros(x.numel() + 1)
        expected = torch.empty_like(x)
        cast = replace(cast_to("e4m3fn", None, mode, None, None), key=8)
        counts = round_anywhere(x, expected, cast)
        for target in (out[:-1], out[1:]):
            total = Receipt()
            round_to(x, "e4m3fn", rounding=mode, key=8, out=target, receipt=total)
            equal(target, expected)
            equal(round_to(x, "e4m3fn", rounding=mode, key=8, out=target.zero_()), expected)
            there = Receipt()
            there.add(x.numel(), counts.tolist())
            assert total == there


@pytest.mark.parametrize("name", ["e4m3fn", "bf16", "e8m0fnu", "int8", "e4m3fnuz", "fp16"])
def test_out_and_strides(name: str) -> None:
    x = torch.randn(33, 70) * 10
    expected = round_to(x, name)
    out = torch.empty(70, 33).mT
    assert round_to(x, name, out=out) is out
    equal(out, expected)
    equal(round_to(x.mT, name), expected.mT)
    equal(round_to(x[::3, 5:9], name), expected[::3, 5:9])
    equal(round_to(x[0, 0], name), expected[0, 0])
    assert round_to(x[:0], name).shape == (0, 70)
    counted = Receipt()
    again = round_to(x, name, out=x, receipt=counted)
    assert again is x
    equal(x, expected)
    assert counted.elements == x.numel()


def test_straight_through_and_rounded_gradients() -> None:
    x = torch.tensor([0.3, 1.7, 1000.0], requires_grad=True)
    upstream = torch.tensor([1e-4, 0.11, 1000.0])
    round_to(x, "e4m3fn", overflow="saturate").backward(upstream)
    assert x.grad is not None
    assert torch.equal(x.grad, upstream)
    x.grad = None
    round_to(x, "e4m3fn", overflow="saturate", gradient="e5m2").backward(upstream)
    assert torch.equal(x.grad, round_to(upstream, "e5m2"))
    low = x.detach().bfloat16().requires_grad_()
    round_to(low, "e4m3fn", dtype=torch.float32, overflow="saturate").sum().backward()
    assert low.grad is not None
    assert low.grad.dtype == torch.bfloat16


def test_meta_tensors_have_only_a_shape() -> None:
    result = round_to(torch.empty(3, 4, device="meta"), "e4m3fn")
    assert result.is_meta
    assert result.shape == (3, 4)


def test_bad_input_is_refused() -> None:
    x = torch.ones(3)
    cases: list[tuple[Any, str]] = [
        (lambda: round_to(x.long(), "fp16"), "dense floating-point tensors, not .*int64"),
        (lambda: round_to(x.cfloat(), "fp16"), "complex64"),
        (lambda: round_to(x.to_sparse(), "fp16"), "sparse_coo"),
        (lambda: round_to([1.0], "fp16"), "Torch tensors and NumPy arrays .* not list"),  # type: ignore[type-var]
        (lambda: round_to(np.ones(2, np.int32), "fp16"), "not int32"),
        (lambda: round_to(x, "fp17"), "unknown format 'fp17'"),
        (lambda: round_to(x, "e4m3"), "means several things"),
        (lambda: round_to(x.bfloat16(), "fp16"), "bfloat16 does not hold fp16"),
        (lambda: round_to(x, "fp64"), "float32 does not hold fp64.*torch.float64"),
        (lambda: round_to(x, "fp16", dtype=torch.int8), "results are floating-point tensors"),
        (lambda: round_to(x, "fp16", out=torch.ones(4)), r"out is \(4,\)"),
        (lambda: round_to(x, "e4m3fn", overflow="to_inf"), "e4m3fn has no infinity"),
        (lambda: round_to(x, "fp16", rounding="nearest"), "Did you mean 'nearest-even'"),  # type: ignore[arg-type]
        (lambda: round_to(x * 1e6, "fp16", overflow="raise"), "3 of 3 elements overflow fp16"),
        (lambda: round_to(x * math.nan, "int8"), "int8 has no NaN, and 3 of 3 elements are NaN"),
        (lambda: round_to(x.double(), "e12m3"), "reaches beyond fp64"),
        (lambda: round_to(x.requires_grad_(), "fp16", out=torch.ones(3)), "no part in autograd"),
    ]
    for call, message in cases:
        with pytest.raises(FormatError, match=message):
            call()


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
named = st.sampled_from([f for f in SCALARS if f.width <= 16 and f.name != "e8m0fnu"])
chances = st.sampled_from([m for m in MODES if m != "stochastic"])


@given(st.lists(numbers, min_size=2, max_size=50), named, chances)
def test_algebra(values: list[float], form: ScalarFormat, mode: Any) -> None:
    """Idempotent, monotone, and mirrored, in the kernel as in the oracle."""
    x = torch.tensor(sorted(values))
    dtype = holding(form, torch.float32)
    rounded = round_to(x, form, rounding=mode, overflow="saturate", dtype=dtype)
    equal(round_to(rounded, form, rounding=mode, overflow="saturate"), rounded)
    assert (rounded.diff() >= 0).all()
    if isinstance(form, FloatFormat):
        mirrored = {"up": "down", "down": "up"}.get(mode, mode)
        other = round_to(-x, form, rounding=mirrored, overflow="saturate", dtype=dtype)
        assert torch.equal(-other, rounded)
