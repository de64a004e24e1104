"""Short accumulators: kernels against exact rationals and recorded bits, and what they lose."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from floatscope.errors import RecipeError
from floatscope.recipes.accumulate import BLOCKS, accumulate
from floatscope.recipes.formats_of import ACCUMULATORS
from floatscope.recipes.kernels import numba_running
from floatscope.recipes.reference_accumulate import accumulated
from floatscope.rounding import denormals, round_to

SHORT = ACCUMULATORS[1:]
FORMATS = ("e4m3fn", "e5m2", "e2m3fn", "e2m1fn", "int8", "bf16", "fp16", "tf32")
EMINS = {"e4m3fn": -6, "e5m2": -14}
KINDS = ("normal", "positive", "wide", "cancelling", "sparse", "extreme", "special", "fp32")


def reference(
    a: Tensor, b: Tensor, accumulator: str, emins: tuple[int, int] = (-149, -149)
) -> Tensor:
    rows, columns = a.float().tolist(), b.float().mT.tolist()
    return torch.tensor(
        [[accumulated(row, column, accumulator, emins) for column in columns] for row in rows]
    ).view(a.shape[0], b.shape[1])


def assert_same_bits(result: Tensor, expected: Tensor) -> None:
    """Equal to the last bit and the sign of zero; NaN like any other NaN."""
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype == torch.float32
    same = (result.view(torch.int32) == expected.view(torch.int32)) | (
        result.isnan() & expected.isnan()
    )
    where = (~same).nonzero()[:3].tolist()
    assert same.all(), [(at, result[*at].item(), expected[*at].item()) for at in where]


def values(kind: str, form: str, shape: tuple[int, int], rng: np.random.Generator) -> Tensor:
    """Numbers of one format; `wide` and `extreme` force alignment loss and leave fp32's range."""
    x = torch.from_numpy(rng.standard_normal(shape))
    if kind == "positive":
        x = x.abs()
    elif kind == "wide":
        x = x * torch.from_numpy(np.exp2(rng.integers(-9, 8, shape)))
    elif kind == "cancelling":
        x = x.abs() * torch.from_numpy(rng.choice([-64.0, 64.0, 1.0], shape))
    elif kind == "sparse":
        x = x * torch.from_numpy(rng.choice([0.0, -0.0, 1.0], shape, p=[0.45, 0.45, 0.1]))
    elif kind in ("extreme", "fp32"):
        x = x * torch.from_numpy(np.exp2(rng.integers(-150, 128, shape)))
    x = (x if kind == "fp32" else round_to(x, form, overflow="saturate")).float()
    if kind in ("special", "extreme"):
        some = torch.from_numpy(rng.choice([math.inf, -math.inf, math.nan, 0.0], shape))
        x = torch.where(torch.from_numpy(rng.random(shape) < 0.02), some.float(), x)
    return x


def significant_bits(x: Tensor) -> int:
    """What all finite values need together, with the leading bit."""
    fractions = x[x.isfinite()].view(torch.int32).numpy() & 0x7F_FFFF
    union = int(np.bitwise_or.reduce(fractions, initial=0))
    return 24 - (union & -union).bit_length() + 1 if union else 1


@st.composite
def operands(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    depth = draw(st.sampled_from((1, 2, 15, 16, 17, 31, 33, 64, 100, 127, 129, 260)))
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kinds, forms = st.sampled_from(KINDS), st.sampled_from(FORMATS)
    a = values(draw(kinds), draw(forms), (rows, depth), rng)
    b = values(draw(kinds), draw(forms), (depth, columns), rng)
    if draw(st.booleans()) and depth > 1:  # the second half takes back the first
        half = depth // 2
        a[:, half : 2 * half], b[half : 2 * half] = -a[:, :half], b[:half]
    return a, b


@pytest.mark.parametrize("accumulator", SHORT)
@settings(max_examples=60)
@given(pair=operands())
def test_kernels_equal_exact_rationals(accumulator: str, pair: tuple[Tensor, Tensor]) -> None:
    a, b = pair
    if accumulator == "fp16" and significant_bits(a) + significant_bits(b) > 40:
        with pytest.raises(RecipeError, match="significant bits"):
            accumulate(a, b, accumulator)
    else:
        assert_same_bits(accumulate(a, b, accumulator), reference(a, b, accumulator))


@pytest.mark.parametrize("accumulator", SHORT)
@pytest.mark.parametrize("form", FORMATS)
def test_kernels_equal_exact_rationals_in_every_format(accumulator: str, form: str) -> None:
    rng = np.random.default_rng(zlib.crc32(form.encode()))
    for kind in ("normal", "wide", "cancelling", "sparse"):
        a, b = values(kind, form, (2, 161), rng), values(kind, form, (161, 3), rng)
        assert_same_bits(accumulate(a, b, accumulator), reference(a, b, accumulator))


@pytest.mark.parametrize("accumulator", SHORT)
def test_tiles_rows_columns_and_threads_do_not_matter(accumulator: str) -> None:
    rng = np.random.default_rng(1)
    a, b = values("wide", "e4m3fn", (77, 50), rng), values("normal", "e4m3fn", (50, 600), rng)
    whole = accumulate(a, b, accumulator)
    for columns in (slice(0, 3), slice(250, 260), slice(599, 600)):
        assert_same_bits(accumulate(a, b[:, columns], accumulator), whole[:, columns])
    assert_same_bits(accumulate(a[70:], b, accumulator), whole[70:])
    assert_same_bits(accumulate(b.mT, a.mT, accumulator).mT.contiguous(), whole)
    some = slice(63, 66), slice(254, 258)
    assert_same_bits(whole[some], reference(a[some[0]], b[:, some[1]], accumulator))
    torch.set_num_threads(2)
    assert_same_bits(accumulate(a, b, accumulator), whole)


@pytest.mark.parametrize("accumulator", SHORT)
def test_the_wide_loops_give_the_bits_of_the_fast_ones(accumulator: str) -> None:
    """An infinity in another row has all rows take the loop without conditions."""
    rng = np.random.default_rng(2)
    a, b = values("wide", "e5m2", (20, 300), rng), values("wide", "e4m3fn", (300, 30), rng)
    both = torch.cat([a, torch.full((1, 300), math.inf)])
    assert_same_bits(accumulate(both, b, accumulator)[:-1], accumulate(a, b, accumulator))


def test_half_sums_without_a_conversion_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    a, b = values("wide", "e5m2", (9, 300), rng), values("wide", "e4m3fn", (300, 9), rng)
    result = accumulate(a, b, "fp16")
    monkeypatch.setattr(numba_running, "CONVERTS_HALF", False)
    assert_same_bits(accumulate(a, b, "fp16"), result)


@pytest.mark.parametrize("accumulator", ACCUMULATORS)
def test_dtypes_layouts_batches_and_empty_shapes(accumulator: str) -> None:
    rng = np.random.default_rng(4)
    a, b = values("normal", "e4m3fn", (4, 40), rng), values("normal", "e5m2", (40, 5), rng)
    whole = accumulate(a, b, accumulator)
    for left, right in ((a.bfloat16(), b.half()), (a.half(), b.bfloat16())):
        assert_same_bits(accumulate(left, right, accumulator), whole)
    assert_same_bits(accumulate(a.mT.contiguous().mT, b.mT.contiguous().mT, accumulator), whole)
    assert_same_bits(accumulate(a.repeat(1, 2)[:, :40], b, accumulator), whole)
    a.requires_grad_(True)
    assert not accumulate(a, b, accumulator).requires_grad
    stacked = accumulate(torch.stack([a, -a]), torch.stack([b, b]), accumulator)
    assert_same_bits(stacked[0], whole)
    assert torch.equal(stacked[1], -whole)
    for shape in ((0, 3, 2), (3, 0, 2), (3, 2, 0)):
        m, k, n = shape
        empty = accumulate(torch.ones(m, k), torch.ones(k, n), accumulator)
        assert_same_bits(empty, torch.zeros(m, n))
    assert accumulate(torch.ones(0, 2, 3), torch.ones(0, 3, 4), accumulator).shape == (0, 2, 4)


def test_refusals() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 2)
    with pytest.raises(RecipeError, match="unknown accumulator 'hopper'.*'hopper-fp8'"):
        accumulate(a, b, "hopper")
    with pytest.raises(RecipeError, match="inner dimensions must be equal"):
        accumulate(a, a, "kahan")
    with pytest.raises(RecipeError, match="two matrices"):
        accumulate(a[0], b, "kahan")
    with pytest.raises(RecipeError, match=r"not torch\.float64"):
        accumulate(a.double(), b, "kahan")
    with pytest.raises(RecipeError, match="emins must lie between"):
        accumulate(a, b, "hopper-fp8", emins=(1, 0))
    with pytest.raises(RecipeError, match="up to 48 significant bits"):
        accumulate(a + 2.0**-23, b + 2.0**-23, "fp16")


def one(a: list[float], b: list[float], accumulator: str, **options: Any) -> float:
    return accumulate(torch.tensor([a]), torch.tensor([b]).mT, accumulator, **options).item()


def test_aligned_sums_as_they_are_described() -> None:
    ones = [1.0, 1.0, 1.0]
    # 2^-13 is kept beside 1, 2^-14 is not, nor are two of it; truncation is toward zero.
    assert one(ones, [1.0, 2.0**-13, 2.0**-14], "hopper-fp8") == 1 + 2.0**-13
    assert one(ones, [1.0, 2.0**-14, 2.0**-14], "hopper-fp8") == 1
    assert one(ones, [1.0, -(2.0**-14), -(2.0**-14)], "hopper-fp8") == 1
    # The exponent of 1.5 * 1.5 is 0, not 1: 2^-13 is kept beside 2.25, until the sum is kept.
    assert one([1.5, 2.0**-13, -1.5], [1.5, 1.0, 1.5], "hopper-fp8") == 2.0**-13
    assert one([1.5, 2.0**-13], [1.5, 1.0], "hopper-fp8") == 2.25
    # What no longer matters beside the sum so far is lost with the next block.
    tail = [1.0] + [0.0] * 15 + [2.0**-14] * 16
    assert one(tail, [1.0] * 32, "ada-fp8") == 1
    assert one([2.0**-14] * 16 + [1.0] + [0.0] * 15, [1.0] * 32, "ada-fp8") == 1 + 2.0**-10
    # Zero is positive.
    assert math.copysign(1, one([-1.0, 1.0], [1.0, 1.0], "hopper-fp8")) == 1
    assert math.copysign(1, one([-0.0], [1.0], "hopper-fp8")) == 1


def test_sums_near_the_bounds_of_the_fast_loop() -> None:
    """A product of 2.25 * 2^e has exponent e, and zero has none, however small e is."""
    for e in range(-130, -90):
        x = math.ldexp(1.5, e + 60)
        a, b = [x, math.ldexp(1.0, e + 60 - 13), x], [math.ldexp(1.5, -60)] * 3
        rows = torch.tensor([a + [0.0] * 40 + a]), torch.tensor([b + [1.0] * 40 + b]).mT
        for accumulator in BLOCKS:
            assert_same_bits(accumulate(*rows, accumulator), reference(*rows, accumulator))


def test_subnormal_operands_align_by_the_exponent_of_their_format() -> None:
    # 2^-9 is subnormal in e4m3: its product with 1 aligns as 2^-6, and 2^-20 is lost beside it.
    a, b = [2.0**-9, 2.0**-4], [1.0, 2.0**-16]
    assert one(a, b, "hopper-fp8") == 2.0**-9 + 2.0**-20
    assert one(a, b, "hopper-fp8", emins=(-6, -149)) == 2.0**-9


@pytest.mark.parametrize("accumulator", BLOCKS)
@pytest.mark.parametrize("forms", [("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn"), ("e5m2", "e5m2")])
def test_emins_equal_exact_rationals(accumulator: str, forms: tuple[str, str]) -> None:
    rng = np.random.default_rng(5)
    a, b = (values("wide", form, (150, 3), rng) * scale
            for form, scale in zip(forms, (2.0**-5, 2.0**-9), strict=True))  # fmt: skip
    a, b = (round_to(x, form) for x, form in zip((a, b), forms, strict=True))
    emins = (EMINS[forms[0]], EMINS[forms[1]])
    result = accumulate(a.mT, b, accumulator, emins=emins)
    assert_same_bits(result, reference(a.mT, b, accumulator, emins))


RECORDED = {
    ("e4m3fn", "e4m3fn"): (0x393B99F4, 0x90A8420B, 0x191538E9),
    ("e4m3fn", "e5m2"): (0x313754C4, 0x41C1CD8A, 0xD845EFBF),
    ("e5m2", "e5m2"): (0x82CBBD30, 0xCB04BF8D, 0x5754F210),
}
"""CRC-32 of the results of mmaemu 0.1.0 (chain_gemm, the presets hopper and ada), in the order of
BLOCKS; the promoted ones are its results for 128 at a time, added in fp32."""
STORED = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def mixed_codes(form: str, rows: int, depth: int) -> Tensor:
    """Values of nearly all codes, in no order."""
    i = torch.arange(rows * depth)
    codes = ((i * i * 31 + i // 7 + 3) % 251 + i % 5).to(torch.uint8).view(rows, depth)
    found = codes.view(STORED[form]).float()
    return torch.where(found.isfinite(), found, torch.tensor(3, dtype=torch.uint8)
                       .view(STORED[form]).float())  # fmt: skip


@pytest.mark.parametrize("forms", RECORDED)
def test_bits_recorded_from_an_emulator_that_was_held_to_the_hardware(
    forms: tuple[str, str],
) -> None:
    a, b = mixed_codes(forms[0], 24, 400), mixed_codes(forms[1], 20, 400).mT
    emins = (EMINS[forms[0]], EMINS[forms[1]])
    for accumulator, recorded in zip(BLOCKS, RECORDED[forms], strict=True):
        result = accumulate(a, b, accumulator, emins=emins)
        assert zlib.crc32(result.numpy().tobytes()) == recorded, accumulator


@pytest.mark.parametrize("accumulator", ["hopper-fp8", "ada-fp8", "fp16", "kahan"])
def test_processor_modes_do_not_matter(accumulator: str) -> None:
    rng = np.random.default_rng(6)
    a, b = values("extreme", "bf16", (3, 40), rng), values("extreme", "bf16", (40, 3), rng)
    expected = accumulate(a, b, accumulator)
    torch.set_flush_denormal(True)
    try:
        assert denormals.are_flushed()
        assert_same_bits(accumulate(a, b, accumulator), expected)
    finally:
        torch.set_flush_denormal(False)


def test_fp32_is_torch_and_kahan_is_as_good_as_fp32_can_be() -> None:
    torch.manual_seed(0)
    a, b = torch.rand(8, 4096).bfloat16(), torch.rand(4096, 8).bfloat16()
    exact = a.double() @ b.double()
    assert torch.equal(accumulate(a, b, "fp32"), torch.mm(a.float(), b.float()))
    # Kahan: 2 units and no growth with K (Higham, Accuracy and Stability, section 4.3).
    bound = (2 * 2.0**-24 + 4096 * 2.0**-48) * exact
    assert ((accumulate(a, b, "kahan") - exact).abs() <= bound).all()
    in_order = torch.zeros(8, 8)
    for k in range(4096):
        in_order += a[:, k, None].float() * b[k].float()
    assert ((in_order - exact).abs() > bound).any()


def largest_error(depth: int, accumulator: str) -> float:
    generator = torch.Generator().manual_seed(depth)
    a = round_to(torch.rand(64, depth, generator=generator), "e4m3fn")
    b = round_to(torch.rand(depth, 64, generator=generator), "e4m3fn")
    exact = a.double() @ b.double()
    result = accumulate(a, b, accumulator)
    assert (result <= exact).all(), "truncation only takes away"
    return ((exact - result) / exact).max().item()


def test_hopper_loses_percents_at_4096_and_promotion_repairs_it() -> None:
    """The loss on positive data grows with K (DeepSeek-V3, section 3.3: "nearly 2%" at 4096).

    Beside a sum S, a product loses less than one unit, 2^-13 S at most. Sums grow evenly, so over
    all products a sum loses less than K/2 * 2^-13 of itself, 25 % here, and 2 more units in each of
    K/32 steps. If what is lost were spread evenly over a unit, and S over an octave, the mean would
    be half a unit and 0.72 of 2^-13 S, so 9 %. Products of e4m3 have few bits, some of them end
    above the unit, and that is less; but more than DeepSeek saw on matrices it does not describe.
    Promotion has 128 in the place of K.
    """
    plain, promoted = (largest_error(4096, n) for n in ("hopper-fp8", "hopper-fp8-promoted"))
    assert 0.02 < plain < (4096 + 2 * 128) / 2 * 2.0**-13
    assert promoted < (128 + 2 * 4 + 2) / 2 * 2.0**-13
    assert promoted < plain / 20
