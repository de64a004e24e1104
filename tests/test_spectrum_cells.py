"""Cells against their definition and the oracle, and a spectrum's counts against a slow count."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.formats import FLOATS, FloatFormat, Specials
from floatscope.rounding import round_value
from floatscope.rounding.cast import DTYPES
from floatscope.spectrum.cells import (
    STRIDE,
    edges_of,
    first_key,
    key_of,
    num_classes,
    octave_of,
)
from floatscope.spectrum.spectrum import Spectrum
from tests.test_formats import by_name

TWO = Fraction(2)


@cache
def defined_class(s: Fraction) -> int:
    """The class of a significand, as the module's docstring defines it."""
    if s == 1:
        return 0
    for ones in itertools.count():
        if 2 - TWO**-ones <= s < 2 - TWO ** -(ones + 1):
            return 1 + 2 * ones + (s > 2 - 3 * TWO ** -(ones + 2))
    raise AssertionError


def defined_key(value: Fraction) -> int:
    octave = 0
    while value >= TWO ** (octave + 1):
        octave += 1
    while value < TWO**octave:
        octave -= 1
    return 128 * octave + defined_class(value / TWO**octave)


def edge_significands(longest: int) -> list[Fraction]:
    """Where the classes of up to `longest` ones meet."""
    begins = [2 - TWO**-ones for ones in range(longest + 1)]
    return begins + [2 - 3 * TWO ** -(ones + 2) for ones in range(longest + 1)]


magnitudes = st.one_of(
    st.fractions(min_value=Fraction(1, 1000), max_value=1000, max_denominator=1000),
    st.builds(
        lambda s, move, octave: (s + move * Fraction(1, 2**40)) * TWO**octave,
        st.sampled_from(edge_significands(12)),
        st.sampled_from([-1, 0, 0, 1]),
        st.integers(-200, 200),
    ),
)


@given(magnitudes)
def test_keys_follow_the_definition(value: Fraction) -> None:
    assert key_of(value) == defined_key(value)
    assert TWO ** octave_of(value) <= value < TWO ** (octave_of(value) + 1)


@pytest.mark.parametrize("fraction_bits", range(12))
def test_classes_number_all_significands(fraction_bits: int) -> None:
    """No number is too large, and the last one is taken."""
    steps = 1 << fraction_bits
    classes = [key_of(Fraction(steps + f, steps)) for f in range(steps)]
    assert classes == sorted(classes)
    assert classes == [defined_class(Fraction(steps + f, steps)) for f in range(steps)]
    assert max(classes) == (num_classes(fraction_bits) - 1 if fraction_bits else 0)


@pytest.mark.parametrize("fraction_bits", [23, 52])
def test_classes_fit_a_stride(fraction_bits: int) -> None:
    assert key_of(2 - TWO**-fraction_bits) == num_classes(fraction_bits) - 1 < STRIDE


@given(magnitudes, magnitudes, st.integers(-300, 300))
def test_keys_are_ordered_and_move_with_scales(a: Fraction, b: Fraction, k: int) -> None:
    small, large = sorted((a, b))
    assert key_of(small) <= key_of(large)
    assert key_of(a * TWO**k) == key_of(a) + STRIDE * k


@given(magnitudes, st.booleans())
def test_first_key_is_an_edge_or_an_error(threshold: Fraction, inclusive: bool) -> None:
    """An edge is where the key changes, just below a threshold (>=) or just above it (>)."""
    # No edge lies nearer to any of these thresholds than a millionth of what is left to 2, but
    # for those moved by 2^-40, and this is a tenth of that.
    step = TWO ** octave_of(threshold) / 2**44
    inside, outside = (threshold, threshold - step) if inclusive else (threshold + step, threshold)
    if key_of(inside) != key_of(outside):
        assert first_key(threshold, inclusive=inclusive) == key_of(inside)
    else:
        with pytest.raises(FormatError, match="no edge between cells at >"):
            first_key(threshold, inclusive=inclusive)


def judged(value: Fraction, form: FloatFormat) -> tuple[bool, bool, bool]:
    """Whether the oracle makes a magnitude zero, zero or subnormal, or too large."""
    try:
        result = round_value(value, form, overflow="raise")
    except FormatError:
        return False, False, True
    return result == 0, result < form.smallest_normal, False


def disagreements(form: FloatFormat) -> list[Fraction]:
    """Magnitudes on both sides of every edge near a threshold that edges_of judges otherwise."""
    zero, normal, over = edges_of(form)
    ones = {0, 1, 2, *range(max(form.fraction_bits - 1, 0), form.fraction_bits + 3)}
    significands = [2 - TWO**-n for n in ones] + [2 - 3 * TWO ** -(n + 2) for n in ones]
    tiny = TWO ** -(form.fraction_bits + 8)
    octaves = {form.min_octave - 2, form.min_octave - 1, form.min_octave, form.emin - 1, form.emin}
    wrong = []
    for octave in octaves | {form.emax - 1, form.emax, form.emax + 1}:
        for s, move in itertools.product(significands, (-tiny, 0, tiny)):
            value = (s + move) * TWO**octave
            key, (is_zero, is_small, is_over) = key_of(value), judged(value, form)
            right = (key >= over) == is_over
            if form.zero:
                right &= zero is not None and (key < zero) == is_zero
                right &= (key < normal) == is_small if normal is not None else is_small == is_zero
            if not right:
                wrong.append(value)
    return wrong


@pytest.mark.parametrize("form", FLOATS, ids=lambda form: form.name)
def test_edges_agree_with_the_oracle(form: FloatFormat) -> None:
    assert disagreements(form) == []


@st.composite
def made_formats(draw: st.DrawFn) -> FloatFormat:
    signed = draw(st.booleans())
    try:
        return FloatFormat(
            "made",
            exponent_bits=draw(st.integers(1, 8)),
            fraction_bits=draw(st.integers(0, 23)),
            bias=draw(st.integers(-40, 300)),
            specials=draw(st.sampled_from(Specials)),
            signed=signed,
            zero=signed,
        )
    except FormatError:
        assume(False)
        raise


@given(made_formats())
def test_edges_of_any_format_agree_with_the_oracle(form: FloatFormat) -> None:
    assert disagreements(form) == []


def test_edges_that_exist() -> None:
    assert edges_of(by_name("e8m0fnu")) == (None, None, 127 * STRIDE + 3)  # from 1.5 * 2^127 on
    assert edges_of(by_name("e4m0"))[1] is None
    assert edges_of(by_name("fp16"))[:2] == (-25 * STRIDE + 1, -15 * STRIDE + 21)
    assert edges_of(by_name("e4m3fn"))[2] == 8 * STRIDE + 6  # above 464, which stays 448


def counted(values: Iterable[float], smallest_normal: int) -> Spectrum:
    """A spectrum made one value at a time, in exact rationals."""
    cells: Counter[int] = Counter()
    squares: Counter[int] = Counter()
    others: Counter[str] = Counter()
    amax = 0.0
    for value in values:
        sign = "negative" if math.copysign(1, value) < 0 else "positive"
        if math.isnan(value):
            others["nans"] += 1
        elif math.isinf(value):
            others[f"{sign}_infinities"] += 1
        elif value == 0:
            others[f"{sign}_zeros"] += 1
        else:
            mantissa, exponent = math.frexp(abs(value))
            amax = max(amax, abs(value))
            others["subnormals"] += exponent - 1 < smallest_normal
            cells[STRIDE * (exponent - 1) + defined_class(2 * Fraction(mantissa))] += 1
            squares[exponent - 1] += math.floor(Fraction(mantissa) * 2**14 + Fraction(1, 2)) ** 2
    keys = sorted(cells)
    return Spectrum(
        keys=np.array(keys, np.int32),
        counts=np.array([cells[key] for key in keys], np.int64),
        squares=dict(squares),
        amax=amax,
        **others,  # type: ignore[arg-type]
    )


def from_bits(bits: list[int]) -> Tensor:
    return torch.from_numpy(np.array(bits, np.uint32).view(np.float32))


edge_bits = st.builds(
    lambda sign, field, ones, length, move: (
        (sign << 31) + max(0, (field << 23) + (((1 << ones) - 1) << (length - ones)) + move)
    ),
    st.integers(0, 1),
    st.integers(0, 254),
    st.integers(0, 10),
    st.sampled_from([10, 23]),
    st.integers(-1, 1),
)
patterns = st.lists(st.integers(0, 2**32 - 1) | edge_bits, max_size=40)
"""Bits of fp32: any, and those around the edges of classes; NaNs and infinities among them."""


@given(patterns)
def test_counts_are_those_of_the_definition(bits: list[int]) -> None:
    x = from_bits(bits)
    spectrum = Spectrum.of(x)
    assert spectrum == counted(x.tolist(), -126)
    assert spectrum.num_elements == len(bits)
    assert spectrum.fraction_bits == 23


SMALL_DTYPES = [dtype for dtype in DTYPES if dtype.itemsize < 4]


@pytest.mark.parametrize("dtype", SMALL_DTYPES, ids=str)
def test_every_code_of_the_small_dtypes(dtype: torch.dtype) -> None:
    integer, size = (torch.int16, 1 << 16) if dtype.itemsize == 2 else (torch.uint8, 1 << 8)
    x = torch.arange(size, dtype=torch.int32).to(integer).view(dtype)
    spectrum = Spectrum.of(x)
    form = DTYPES[dtype]
    expected = counted(x.double().tolist(), form.emin)
    if not form.has_negative_zero:
        assert expected.negative_zeros == 0
    assert spectrum == expected
    assert spectrum.num_elements == size
    assert spectrum.fraction_bits == form.fraction_bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("near", [1.0, 1.9921875, 2.0**-14])
@pytest.mark.parametrize("size", [1 << 19, (1 << 21) + 77])
def test_many_equal_elements_among_far_ones(size: int, near: float, dtype: torch.dtype) -> None:
    """All of one kind at even places, octaves away from those at odd ones."""
    far = 2.0**-24 if dtype is torch.float16 else 2.0**-100
    for even, odd in ((near, far), (far, near)):
        x = torch.full((size,), even, dtype=dtype)
        x[1::2] = odd
        spectrum = Spectrum.of(x)
        assert spectrum.num_elements == size
        tally = [(math.floor(math.log2(v)), int((x == v).sum()), v) for v in sorted({near, far})]
        assert spectrum.counts.tolist() == [count for _, count, _ in tally]
        for octave, count, v in tally:
            assert spectrum.squares[octave] == count * round(v / 2**octave * 2**13) ** 2


@settings(max_examples=50)
@given(patterns, st.randoms(use_true_random=False))
def test_order_shape_stride_and_sign_do_not_matter(bits: list[int], random: Any) -> None:
    x = from_bits(bits)
    spectrum = Spectrum.of(x)
    shuffled = bits.copy()
    random.shuffle(shuffled)
    assert Spectrum.of(from_bits(shuffled)) == spectrum
    wide = torch.full((len(bits), 3), 7.0)
    wide[:, 1] = x
    assert Spectrum.of(wide[:, 1]) == spectrum
    assert Spectrum.of(wide.mT[1:2]) == spectrum
    assert Spectrum.of(x.reshape(-1, 1, 1)) == spectrum
    assert Spectrum.of(x.numpy()[::-1]) == spectrum
    negated = Spectrum.of(-x)
    assert negated == Spectrum.of(from_bits([b ^ (1 << 31) for b in bits]))
    assert negated.counts.tolist() == spectrum.counts.tolist()
    assert negated.keys.tolist() == spectrum.keys.tolist()
    assert negated.positive_zeros == spectrum.negative_zeros
    assert negated.positive_infinities == spectrum.negative_infinities
    assert (negated.nans, negated.amax) == (spectrum.nans, spectrum.amax)
    assert negated.squares == spectrum.squares


def test_what_has_no_spectrum_is_refused() -> None:
    cases: list[tuple[Any, str]] = [
        (torch.ones(3, dtype=torch.int32), "this tensor is torch.int32; convert it"),
        (torch.ones(3, dtype=torch.complex64), "torch.view_as_real"),
        (torch.ones(3, device="meta"), "no values to measure"),
        (np.ones(3, np.int64), "int64"),
        ([1.0], "not of list"),
        (torch.ones(3).to_sparse(), "sparse|dense"),
    ]
    for x, message in cases:
        with pytest.raises(FormatError, match=message):
            Spectrum.of(x)


def test_formats_may_be_dtypes_and_spectra_sum() -> None:
    a, b = torch.randn(100), torch.randn(50) * 2.0**-20
    spectrum = sum([Spectrum.of(a), Spectrum.of(b)])
    assert spectrum == Spectrum.of(torch.cat((a, b)))
    assert isinstance(spectrum, Spectrum)
    assert spectrum.underflow(torch.float16) == spectrum.underflow("fp16")
    for wrong in (None, 3, "fp17"):
        with pytest.raises(FormatError, match="unknown format"):
            spectrum.underflow(wrong)  # type: ignore[arg-type]
    for scale in (None, "8", 2**2000, 3, 0, float("nan")):
        with pytest.raises(FormatError, match="is none"):
            spectrum.underflow("fp16", scale)  # type: ignore[arg-type]
