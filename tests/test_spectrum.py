"""Predictions against real casts, the algebra of spectra, and the windows of safe scales."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from conformance.spectrum import (
    KINDS,
    SCALES,
    cast_counts,
    floats,
    mismatches,
    random_patterns,
    special_inputs,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.rounding import round_to
from floatscope.spectrum import predict
from floatscope.spectrum.cells import edges_of
from floatscope.spectrum.predict import Share
from floatscope.spectrum.spectrum import Spectrum
from tests.test_formats import ORACLES, by_name
from tests.test_spectrum_cells import from_bits, judged, patterns

FORMS = floats()
SAMPLED_SCALES = [-20, -19, -14, -7, -1, 0, 1, 8, 15, 16, 27, 40]
TORCH = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3fn": torch.float8_e4m3fn,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2": torch.float8_e5m2,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
SATURATING = {"Torch e4m3fn", "ml_dtypes e2m3fn", "ml_dtypes e3m2fn", "ml_dtypes e2m1fn"}
"""Casts whose results do not show what overflowed."""


def inputs() -> Tensor:
    """All special inputs of all scales and 10^5 random bit patterns."""
    return torch.from_numpy(
        np.concatenate([special_inputs(FORMS, SCALES), random_patterns(100_000)])
    )


# Predictions


def test_predictions_equal_real_casts() -> None:
    """A sample of what `python -m conformance.spectrum` does with 10^7 patterns at every scale."""
    found = mismatches(inputs(), FORMS, SAMPLED_SCALES)
    assert found.shape == (len(FORMS), len(SAMPLED_SCALES), len(KINDS))
    assert not found.any(), [FORMS[i].name for i in np.flatnonzero(found.sum((1, 2)))]


@pytest.mark.parametrize("move", [-1, 1])
@pytest.mark.parametrize("edge", range(3))
def test_an_edge_beside_the_right_one_would_be_found(
    edge: int, move: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(form: Any) -> Any:
        edges = [*edges_of(form)]
        edges[edge] += move
        return tuple(edges)

    forms = floats(["fp16", "e4m3fn", "e2m1fn", "e5m6"])
    x = torch.from_numpy(special_inputs(forms, [0, 3]))
    assert not mismatches(x, forms, [0, 3]).any()
    monkeypatch.setattr(predict, "edges_of", moved)
    found = mismatches(x, forms, [0, 3])
    assert found.any(axis=2).all()
    kinds = {0: [0, 1], 1: [1], 2: [2]}[edge]
    assert found.any(axis=(0, 1)).nonzero()[0].tolist() == kinds


@pytest.mark.parametrize("exponent", SAMPLED_SCALES)
def test_predictions_equal_the_casts_of_torch_and_ml_dtypes(exponent: int) -> None:
    """Of the inputs that fp32 can scale exactly, because these libraries round fp64 twice."""
    x = inputs()
    scaled = x.double() * 2.0**exponent
    held = (scaled.float().double() == scaled) & (x != 0) & x.isfinite() & scaled.float().isfinite()
    spectrum, y = Spectrum.of(x[held]), scaled[held].float()
    casts = {f"Torch {name}": y.to(dtype).float().abs() for name, dtype in TORCH.items()}
    for name, dtype in ORACLES.items():
        given = y.abs() if name == "e8m0fnu" else y
        with np.errstate(all="ignore"):
            casts[f"ml_dtypes {name}"] = torch.from_numpy(
                np.abs(given.numpy().astype(dtype).astype(np.float32))
            )
    for title, result in casts.items():
        form = by_name(title.split()[1])
        sweep = spectrum.sweep(form, [exponent])
        zeros = int((result == 0).sum())
        assert sweep.underflow.tolist() == [zeros], title
        small = int((result.double() < float(form.smallest_normal)).sum())
        assert sweep.subnormal.tolist() == [small - zeros], title
        if title not in SATURATING:
            assert sweep.overflow.tolist() == [int((~result.isfinite()).sum())], title
        assert sweep.of == y.numel()


def test_predictions_for_fp64_equal_real_casts() -> None:
    """Random patterns of all exponents, and as many of those that the formats tell apart."""
    forms = floats(["fp64", "fp32", "bf16", "fp16"])
    scales = [*SAMPLED_SCALES, -900, 900]
    near = np.ldexp(1 + np.random.default_rng(1).random(50_000), np.arange(50_000) % 400 - 200)
    everywhere = random_patterns(50_000, np.float64)
    x = torch.from_numpy(
        np.concatenate([special_inputs(forms, scales, np.float64), near, everywhere])
    )
    assert not mismatches(x, forms, scales).any()


def test_fp64_casts_of_scaled_values_equal_the_oracle() -> None:
    """What fp64 rounds or loses when it is scaled is still counted rightly."""
    forms = floats(["fp64", "fp32", "bf16", "fp16"])
    special = special_inputs(forms, [0], np.float64)
    x = special[np.isfinite(special) & (special > 0)][::97]
    for exponent in (-60, -3, 5):
        scaled = torch.from_numpy(x) * 2.0**exponent
        exact = [Fraction(v) * Fraction(2) ** exponent for v in x.tolist()]
        for form in forms:
            zeros, small, over = np.sum([judged(v, form) for v in exact], axis=0)
            assert cast_counts(scaled, form) == (zeros, small - zeros, over), form.name


def test_known_thresholds() -> None:
    """The boundaries of fp16, e4m3fn and e2m1fn, written out."""
    x = torch.tensor([2.0**-25, 2.0**-25 * 1.0001, 2.0**-14 - 2.0**-26, 2.0**-14, 65519.0, 65520.0])
    spectrum = Spectrum.of(-x)
    assert spectrum.underflow("fp16") == Share(1, 6)
    assert spectrum.subnormal("fp16") == Share(1, 6)
    assert spectrum.overflow("fp16").fraction == 1 / 6
    assert Spectrum.of(torch.tensor([464.0, 464.0001, 448.0])).overflow("e4m3fn") == Share(1, 3)
    assert Spectrum.of(torch.tensor([0.25, 0.2501, 7.0, 7.001])).underflow("e2m1fn").count == 1
    assert spectrum.overflow("fp16", 0.5).count == 0
    assert spectrum.underflow("fp16", 2).count == 0


# Algebra


@given(patterns, patterns, patterns)
def test_spectra_add_up(a: list[int], b: list[int], c: list[int]) -> None:
    one, two, three = (Spectrum.of(from_bits(bits)) for bits in (a, b, c))
    whole = Spectrum.of(from_bits(a + b + c))
    assert (one + two) + three == one + (two + three) == whole
    assert one + two == two + one
    assert Spectrum.sum([one, two, three]) == whole
    assert one + Spectrum.empty() == one
    assert whole.num_elements == len(a + b + c)
    assert [*whole.octave_counts().values()] == [
        int(whole.below(e + 1).count - whole.below(e).count) for e in whole.octave_counts()
    ]


def test_the_empty_spectrum() -> None:
    empty = Spectrum.sum([])
    assert empty == Spectrum.empty() == Spectrum.of(torch.empty(0, 3)) == Spectrum.of(np.empty(0))
    assert (empty.num_elements, empty.amax, len(empty.octaves)) == (0, 0.0, 0)
    assert empty.sum_of_squares == 0
    assert empty.underflow("fp16") == Share(0, 0)
    for nothing in (empty.rms, empty.below(3).fraction, empty.rounding_error("fp16")):
        assert math.isnan(nothing)


@given(patterns, st.integers(-60, 60))
def test_scaling_moves_the_spectrum(bits: list[int], exponent: int) -> None:
    x = from_bits(bits)
    wide = x.double() * 2.0**exponent
    scaled = wide.float()
    assume(bool((scaled.double() == wide)[x.isfinite()].all()))
    moved = Spectrum.of(x).scaled(exponent)
    there = Spectrum.of(scaled)
    assert replace(moved, subnormals=0) == replace(there, subnormals=0)
    for form in ("fp16", "e4m3fn"):
        unscaled = Spectrum.of(x)
        for predicted in ("underflow", "subnormal", "overflow"):
            here = getattr(unscaled, predicted)(form, 2.0**exponent)
            assert here == getattr(there, predicted)(form)


@given(patterns, st.integers(-150, 130))
def test_moments_and_extremes(bits: list[int], exponent: int) -> None:
    x = from_bits(bits)
    spectrum = Spectrum.of(x)
    finite = [Fraction(v) for v in x[x.isfinite()].tolist()]
    assert spectrum.amax == max((abs(float(v)) for v in finite), default=0.0)
    # A significand of 14 bits is off by 2^-14 of itself at most, so its square by 2^-13.
    exact = sum(v * v for v in finite)
    assert abs(Fraction(spectrum.sum_of_squares) - exact) <= exact / 2**13
    if finite:
        assert math.isclose(spectrum.rms**2 * len(finite), spectrum.sum_of_squares, rel_tol=1e-14)
    nonzero = [abs(v) for v in finite if v]
    small = sum(v < Fraction(2) ** exponent for v in nonzero)
    assert spectrum.below(exponent) == Share(small, len(nonzero))
    octaves = [math.frexp(v)[1] - 1 for v in nonzero]
    expected = range(min(octaves), max(octaves) + 1) if octaves else range(0)
    assert spectrum.octaves == expected


def test_octaves_beyond_fp64_neither_raise_nor_vanish() -> None:
    """Squares of numbers from 2^512 on are beyond fp64, and the root of their mean is not."""
    spectrum = Spectrum.of(torch.tensor([1.0, 1.1, 1.2]))
    for exponent in (-700, 700):
        far = spectrum.scaled(exponent)
        assert math.isclose(far.rms, math.ldexp(spectrum.rms, exponent), rel_tol=1e-12)
        error = far.rounding_error("bf16", 2.0**-exponent)
        assert math.isclose(error, spectrum.rounding_error("bf16"), rel_tol=1e-12)
    assert spectrum.scaled(700).sum_of_squares == math.inf


# The estimate of rounding errors

SAMPLES = {
    "normal": lambda: torch.randn(1 << 18, generator=torch.Generator().manual_seed(0)),
    "uniform": lambda: torch.rand(1 << 18, generator=torch.Generator().manual_seed(1)) * 2 - 1,
    "log-normal": lambda: torch.randn(1 << 18, generator=torch.Generator().manual_seed(2)).exp(),
}
ROUNDED = [  # format, k of the scale, fraction bits that values around 1 keep there
    ("fp32", -130, 19),
    ("tf32", 0, 10), ("tf32", -126, 10), ("tf32", -130, 6),
    ("fp16", -14, 10), ("fp16", -20, 4), ("fp16", -24, None), ("fp16", -26, None),
    ("bf16", 0, 7), ("e4m0", 0, 0),
    ("e4m3fn", 0, 3), ("e4m3fn", -6, 3), ("e4m3fn", -11, None), ("e4m3fn", 7, None),
    ("e5m2", -10, 2), ("e5m2", -16, None),
    ("e2m3fn", 1, None), ("e2m1fn", 0, None), ("e2m1fn", 2, None), ("e5m6", 0, 6),
]  # fmt: skip


@pytest.mark.parametrize("kind", SAMPLES)
def test_rounding_error_is_what_a_cast_does(kind: str) -> None:
    """The tolerance has two parts.

    Chance: given x, the sum of squared errors e^2 of n elements is uncertain by less than
    sqrt(sum(e^4)), and its root by half of that, relatively. Five times that.

    Shape: the estimate takes values as spread evenly over an ulp u. A cell is symmetric about its
    value, so a slope of the density cancels. Its curvature changes an octave's mean square, to
    leading order by the fraction u^2/30 * (change of slope over the octave) / (share of the
    elements in it). For the normal density that adds up to 24 %, 12 % of the root, if there are no
    fraction bits, and falls with 4^-bits. Where an octave is cut (next to zero it is rounded one
    way only; at the top a part overflows, and the rest is given the octave's mean square), the
    slope counts too: 5 %.
    """
    x = SAMPLES[kind]()
    spectrum = Spectrum.of(x)
    for name, exponent, bits in ROUNDED:
        form = by_name(name)
        scaled = x.double() * 2.0**exponent
        edge = float(form.overflow_threshold)
        scaled = scaled[scaled.abs() < edge if form.tie_overflows else scaled.abs() <= edge]
        errors = (round_to(scaled, form) - scaled) / 2.0**exponent
        energy = (scaled / 2.0**exponent).square().sum()
        measured = math.sqrt(errors.square().sum() / energy)
        chance = 2.5 * math.sqrt(errors.pow(4).sum()) / errors.square().sum()
        shape = 0.05 if bits is None else 0.12 * 4.0**-bits
        estimate = spectrum.rounding_error(form, 2.0**exponent)
        assert abs(estimate / measured - 1) < chance + shape + 2**-13, (name, exponent)


@pytest.mark.parametrize(
    ("dtype", "form"),
    [(torch.bfloat16, "fp32"), (torch.float16, "fp32"), (torch.float16, "tf32"),
     (torch.float8_e4m3fn, "fp16"), (torch.float8_e5m2, "fp16"), (torch.float32, "fp64"),
     (torch.float32, "fp32"), (torch.float16, "fp16"), (torch.bfloat16, "bf16")],
    ids=str,
)  # fmt: skip
def test_nothing_is_lost_in_a_format_that_holds_the_data(dtype: torch.dtype, form: str) -> None:
    """Subnormals of the measured dtype have fewer bits than its normal numbers."""
    smallest = torch.finfo(dtype).smallest_normal
    noise = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    x = torch.cat([noise[:1000], noise[1000:] * smallest]).to(dtype)
    assert torch.equal(round_to(x.double(), form), x.double())
    assert Spectrum.of(x).subnormals > 100
    assert Spectrum.of(x).rounding_error(form) == 0.0
    assert Spectrum.of(x[:1000]).rounding_error("e2m1fn") > 0.1


# Windows of scales


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 2**31 + 0x7F7F_FFFF).filter(lambda b: b & 0x7F80_0000 != 0x7F80_0000),
             max_size=12),
    st.sampled_from(["fp16", "bf16", "e4m3fn", "e2m1fn", "e8m0fnu", "fp32"]),
    st.sampled_from([0.0, 0.125, 0.5, 1.0]),
)  # fmt: skip
def test_safe_scales_are_those_that_are_safe(bits: list[int], name: str, tolerance: float) -> None:
    spectrum = Spectrum.of(from_bits(bits))
    sweep = spectrum.sweep(name)
    assert sweep.exponents.tolist() == [*range(-126, 128)]
    safe = []
    for k in range(-126, 128):
        lost, beyond = spectrum.underflow(name, 2.0**k), spectrum.overflow(name, 2.0**k)
        assert sweep.underflow[k + 126] == lost.count
        assert sweep.overflow[k + 126] == beyond.count
        if not beyond.count and Fraction(lost.count) <= Fraction(tolerance) * lost.of:
            safe.append(k)
    window = spectrum.safe_scales(name, tolerance)
    if safe:
        assert window
        assert safe == [*range(window.k_min, window.k_max + 1)]  # type: ignore[arg-type, operator]
        assert (window.width, window.why) == (safe[-1] - safe[0], "")
    else:
        assert not window
        assert window.why
        assert window.width == 0


def test_reasons_when_no_scale_is_safe() -> None:
    wide = Spectrum.of(torch.tensor([2.0**-30, 2.0**15]))
    window = wide.safe_scales("fp16")
    assert (window.k_min, window.k_max) == (6, 0)
    assert "from 2^1 on it overflows fp16" in window.why
    assert "up to 2^5 more than 0 of it underflows (0.5 at 2^0)" in window.why
    assert wide.safe_scales("fp16", tolerance=0.5).k_max == 0
    infinite = Spectrum.of(torch.tensor([1.0, math.inf, -math.inf, math.nan]))
    assert infinite.safe_scales("fp32").why == "2 elements are infinite and 1 NaN at any scale"
    tiny = Spectrum.of(torch.tensor([2.0**-149])).safe_scales("e4m3fn", 0.25)
    assert tiny.why == "more than 0.25 of it underflows at every scale that fp32 holds"
    huge = Spectrum.of(torch.ones(1)).scaled(200).safe_scales("fp16")
    assert huge.why == "its largest element overflows at every scale that fp32 holds"
    assert not any((window, tiny, huge))


@pytest.mark.parametrize("x", [torch.zeros(4), -torch.zeros(4), torch.empty(0)])
def test_zeros_fit_at_every_scale(x: Tensor) -> None:
    window = Spectrum.of(x).safe_scales("fp16")
    assert window
    assert (window.k_min, window.k_max, window.width) == (-126, 127, 253)


def test_bad_requests_are_refused() -> None:
    spectrum = Spectrum.of(torch.ones(3))
    cases: list[tuple[Any, str]] = [
        (lambda: spectrum.safe_scales("fp16", 1.5), "between 0 and 1, not 1.5"),
        (lambda: spectrum.safe_scales("fp16", -0.1), "between 0 and 1"),
        (lambda: spectrum.safe_scales("fp16", math.nan), "between 0 and 1"),
        (lambda: spectrum.underflow("int8"), "int8 is none, and its values lie on an even grid"),
        (lambda: spectrum.sweep("mxfp8-e4m3"), "its block scales depend on the neighbors"),
        (lambda: spectrum.safe_scales("nvfp4"), "round_to and block_round count"),
        (lambda: spectrum.rounding_error("fp17"), "unknown format 'fp17'"),
        (lambda: spectrum.overflow("e4m3"), "means several things"),
    ]
    for scale in (3.0, 0, 0.0, -2.0, math.inf, -math.inf, math.nan, 1.0000001):
        for ask in (spectrum.underflow, spectrum.overflow, spectrum.rounding_error):
            cases.append((lambda ask=ask, scale=scale: ask("fp16", scale), "and .* is none"))
    for call, message in cases:
        with pytest.raises(FormatError, match=message):
            call()
