"""Block formats: kernels against the oracle, against torchao, and their algebra."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.formats import BLOCKS, BlockFormat, ScaleRule
from floatscope.formats import format as format_called
from floatscope.rounding import Receipt, block_round, decode_from, round_to, unpack
from floatscope.rounding.block_layout import layout_of
from floatscope.rounding.blocks_anywhere import blocks_anywhere
from floatscope.rounding.cast import cast_to
from floatscope.rounding.reference_blocks import round_block, scaling, tensor_encode
from floatscope.rounding.rules import standard
from tests.test_round_to import equal

RULES = [rule for rule in ScaleRule if rule not in (ScaleRule.NVFP4, ScaleRule.AMAX)]


def block(name: str) -> BlockFormat:
    form = format_called(name)
    assert isinstance(form, BlockFormat)
    return form


FORMS = [*BLOCKS, *(replace(block(name), name=f"{name}-{rule.value}", rule=rule)
                    for name in ("mxfp8-e4m3", "mxfp4", "mxint8") for rule in RULES)]  # fmt: skip


# Largest magnitudes of a block: at limits of elements, scales and fp32.
TOPS = """0 1 448 6 7.5 28 57344 1.75 1.96875 2688 0x1p-119 0x1p-126 0x1p-127 0x1.8p-127 0x1p-140
0x1p-149 3e-39 0x1p127 0x1.fffffep127 0x1.cp-92 0x1.8p112 0x1.8p-3 0x1.fp5 0x1.7ffffep4"""


def edge_blocks(size: int) -> Tensor:
    """Rows of one block each: ordinary ones, and every kind of trouble."""
    rng = np.random.default_rng(0)
    exact = [float.fromhex(top) if "x" in top else float(top) for top in TOPS.split()]
    tops = np.array(exact, np.float32)
    with np.errstate(over="ignore"):
        around = [np.nextafter(tops, np.float32(end)) for end in (0, np.inf)]
        tops = np.concatenate([tops, *around])
    rows = rng.uniform(-1, 1, (len(tops) + 20, size)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        rows[: len(tops)] *= tops[:, None]
    rows[np.arange(len(tops)), rng.integers(0, size, len(tops))] = -tops
    rows[-1] *= np.exp(3 * rng.standard_normal(size))
    rows[-2] = -0.0
    rows[-3, 1] = np.inf
    rows[-4, 2] = np.nan
    rows[-5, 3], rows[-5, 4] = -np.inf, np.nan
    return torch.from_numpy(rows)


def by_oracle(x: Tensor, form: BlockFormat) -> Tensor:
    """Each row as one block."""
    array = x.numpy()
    encode = None
    if form.rule is ScaleRule.NVFP4:
        finite = np.abs(array[np.isfinite(array)])
        encode = tensor_encode(finite.max(initial=np.float32(0)), form)
    rows = []
    for row in array:
        how = scaling(np.abs(row).max(), form, encode)
        rows.append(round_block(list(row), form, how))
    return torch.tensor(np.array(rows))


def one_block(form: BlockFormat) -> BlockFormat:
    """The format with blocks of one row of 32 elements, so that the oracle is quick."""
    return replace(form, block=(1, 16 if form.rule is ScaleRule.NVFP4 else 32))


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
def test_kernels_equal_the_oracle(form: BlockFormat) -> None:
    form = one_block(form)
    x = edge_blocks(form.block[1])  # type: ignore[arg-type]
    expected = by_oracle(x, form)
    equal(block_round(x, form).values, expected)
    counted = Receipt()
    equal(block_round(x, form, receipt=counted).values, expected)  # another loop
    out, scales = torch.empty_like(x), torch.empty(len(x), 1)
    layout = layout_of(tuple(x.shape), form, columnwise=False)
    cast = cast_to(form.element, standard(form.element), "nearest-even", "saturate", None)
    counts, _ = blocks_anywhere(x, out, scales, form, cast, layout)
    equal(out, expected)
    equal(scales, block_round(x, form).scales)
    there = Receipt()
    there.add(x.numel(), counts.tolist())
    assert there == counted
    assert counted.flushed == int(((expected == 0) & (x != 0)).sum())


TORCHAO = {
    "mxfp8-e4m3": torch.float8_e4m3fn,
    "mxfp8-e5m2": torch.float8_e5m2,
    "mxfp6-e2m3": "fp6_e2m3",
    "mxfp6-e3m2": "fp6_e3m2",
    "mxfp4": torch.float4_e2m1fn_x2,
}
NOT_IN_TORCHAO = {("mxfp6-e2m3", "rceil"), ("mxfp6-e3m2", "rceil")}


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("name", TORCHAO)
def test_mx_agrees_with_torchao(name: str, rule: str, torchao: Any) -> None:
    """Scales and values, where torchao 0.18 follows the rule.

    Left out: blocks with NaN or infinity, and those whose scale is below 2^-100, which its
    division by the scale loses (numerics D7, D8); EVEN near the top of fp32, where it wraps.
    """
    form = block(name)
    if (name, rule) in NOT_IN_TORCHAO:
        pytest.skip("torchao 0.18 has no RCEIL for fp6")
    x = edge_blocks(32)
    top = x.abs().amax(1)
    x = x[(top < 2.0**120) & ((top > 2.0**-90) | (top == 0))]
    mode = torchao.ScaleCalculationMode(rule)
    scales, codes = torchao.to_mx(x, TORCHAO[name], 32, mode)
    if rule == "rceil":  # its fp32 log2 does not see what is just above a power of two
        quotient = x.abs().amax(1) * (np.float32(1) / np.float32(form.element.max))
        just_above = (quotient.view(torch.int32) & 0x7F_FFFF).sub(1) % (1 << 23) < 8
        fooled = block_round(x, form, rule=rule).scales == 2 * scales.float()
        assert fooled.any()
        assert just_above[fooled[:, 0]].all()
        x, scales, codes = x[~fooled[:, 0]], scales[~fooled[:, 0]], codes[~fooled[:, 0]]
    ours = block_round(x, form, rule=rule)
    equal(ours.scales, scales.float())
    if name.startswith("mxfp8"):
        equal(ours.values, codes.float() * scales.float())
    else:
        unpacked = unpack(codes, form.element.width, 32) if name == "mxfp4" else codes
        elements = decode_from(unpacked, form.element)
        equal(ours.values, elements * scales.float())


@pytest.fixture(scope="module")
def torchao() -> Any:
    """torchao's MX casts; importing it warns about its extensions for CUDA."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")


SHAPES = [(64, 96), (3, 40, 50), (2, 2, 33, 17), (1, 5), (128, 256)]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", BLOCKS, ids=lambda f: f.name)
def test_any_shape_and_axis(form: BlockFormat, shape: tuple[int, ...], axis: int) -> None:
    """The CPU's strips and the Torch path agree on tails, matrices and both directions."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3
    ours = block_round(x, form, axis=axis)
    layout = layout_of(shape, form, columnwise=axis == -2)
    out, scales = torch.empty_like(x), torch.empty(layout.scales_shape)
    cast = cast_to(form.element, standard(form.element), "nearest-even", "saturate", None)
    blocks_anywhere(x, out, scales, form, cast, layout)
    equal(ours.values, out)
    equal(ours.scales, scales)
    counted = block_round(x, form, axis=axis, receipt=Receipt())
    equal(counted.values, out)
    if axis == -2 and isinstance(form.block, tuple) and form.rule is not ScaleRule.NVFP4:
        turned = block_round(x.mT, form)
        equal(turned.values.mT, ours.values)
        equal(turned.scales.mT, ours.scales)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", ["mxfp8-e4m3", "nvfp4", "fp8-1x128", "fp8-tensor"])
def test_large_outputs(name: str, axis: int) -> None:
    """Stored past the caches where they are aligned; with rows that end in half a block too."""
    for shape in ((2100, 1040), (1 << 22,)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(6))
        columnwise = axis == -2 and x.ndim > 1
        form = block(name)
        layout = layout_of(shape, form, columnwise=columnwise)
        expected, scales = torch.empty_like(x), torch.empty(layout.scales_shape)
        cast = cast_to(form.element, standard(form.element), "nearest-even", "saturate", None)
        blocks_anywhere(x, expected, scales, form, cast, layout)
        for out in (None, torch.empty_like(x), torch.empty(x.numel() + 1)[1:].view(shape)):
            ours = block_round(x, form, axis=-2 if columnwise else -1, out=out)
            equal(ours.values, expected)
            equal(ours.scales, scales)


@pytest.mark.parametrize("name", ["mxfp8-e4m3", "mxfp4", "nvfp4", "fp8-128x128", "mxint8"])
def test_stochastic_elements_are_the_same_everywhere(name: str) -> None:
    form = block(name)
    x = torch.randn(3, 40, 70, generator=torch.Generator().manual_seed(2)) * 100
    ours = block_round(x, form, rounding="stochastic", key=77, random_bits=9)
    layout = layout_of(tuple(x.shape), form, columnwise=False)
    out, scales = torch.empty_like(x), torch.empty(layout.scales_shape)
    cast = cast_to(form.element, standard(form.element), "stochastic", "saturate", None)
    blocks_anywhere(x, out, scales, form, replace(cast, key=77, random_bits=9), layout)
    equal(ours.values, out)
    draws = [block_round(x, form, rounding="stochastic", key=k).values for k in range(400)]
    mean = torch.stack(draws).mean(0)
    below, above = (block_round(x, form, rounding=r).values for r in ("down", "up"))  # type: ignore[arg-type]
    inside = (below <= x) & (x <= above)  # the rest saturates
    assert inside.float().mean() > 0.95
    # a coin of any bias over a gap g has a standard deviation of at most g / 2
    bound = 5 * (above - below) / 2 / math.sqrt(len(draws))
    assert ((mean - x).abs() <= bound + 1e-5 * x.abs())[inside].all()


def test_sixteen_bit_and_double_input() -> None:
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(3))
    for dtype in (torch.bfloat16, torch.float16):
        given = x.to(dtype)
        for name in ("mxfp8-e4m3", "nvfp4", "fp8-tensor"):
            ours = block_round(given, name)
            assert ours.values.dtype == torch.float32
            equal(ours.values, block_round(given.float(), name).values)
    wide = x.double() * (1 + 2.0**-40)
    ours = block_round(wide, "mxfp8-e4m3").values
    assert ours.dtype == torch.float64
    scales = block_round(x, "mxfp8-e4m3").scales.double().repeat_interleave(32, -1)
    expected = round_to(wide / scales, "e4m3fn", overflow="saturate") * scales
    equal(ours, expected)


def test_below_a_power_of_two_the_floor_is_not_fooled() -> None:
    """Numerics D4: log2 in fp32 rounds up there; exponent bits do not."""
    below = np.nextafter(np.float32(256), np.float32(0))
    x = torch.full((1, 32), float(below))
    assert block_round(x, "mxfp8-e4m3").values[0, 0] == 224
    assert block_round(x, "mxfp8-e4m3", rule="rceil").values[0, 0] == 256
    assert block_round(x.double(), "mxfp8-e4m3").values[0, 0] == 224


@given(st.integers(-80, 80), st.sampled_from([b for b in BLOCKS if b.rule is ScaleRule.FLOOR]))
def test_powers_of_two_pass_through(exponent: int, form: BlockFormat) -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(4))
    for rule in ("floor", "ceil", "even", "rceil"):
        scaled = block_round(x * 2.0**exponent, form, rule=rule)
        plain = block_round(x, form, rule=rule)
        equal(scaled.values, plain.values * 2.0**exponent)
        equal(scaled.scales, plain.scales * 2.0**exponent)


def test_two_dimensional_blocks_commute_with_transposition() -> None:
    w = torch.randn(48, 80, generator=torch.Generator().manual_seed(5))
    for name, shape in (("nvfp4", (16, 16)), ("fp8-128x128", (128, 128)), ("mxfp4", (32, 32))):
        straight = block_round(w, name, block=shape).values
        equal(block_round(w.mT, name, block=shape).values.mT, straight)


def test_autograd() -> None:
    x = torch.randn(4, 32, requires_grad=True)
    rounded = block_round(x, "mxfp8-e4m3")
    assert not rounded.scales.requires_grad
    upstream = torch.linspace(-3, 3, 128).view(4, 32)
    rounded.values.backward(upstream)
    assert x.grad is not None
    assert torch.equal(x.grad, upstream)
    for gradient in ("e5m2", "mxfp4"):
        x.grad = None
        block_round(x, "mxfp8-e4m3", gradient=gradient).values.backward(upstream)
        into = round_to if gradient == "e5m2" else lambda g, f: block_round(g, f).values
        assert torch.equal(x.grad, into(upstream, gradient))


def test_out_may_be_the_input() -> None:
    x = torch.randn(64, 64)
    expected = block_round(x, "nvfp4").values
    turned = x.clone().mT
    result = block_round(x, "nvfp4", out=x)
    assert result.values is x
    equal(x, expected)
    strided = torch.empty(64, 64).mT
    assert block_round(turned, "nvfp4", out=strided).values is strided


def test_bad_input_is_refused() -> None:
    x = torch.randn(4, 40)
    cases: list[tuple[Any, str]] = [
        (lambda: block_round(x, "e4m3fn"), "e4m3fn has no blocks; use round_to"),
        (lambda: block_round(x.long(), "mxfp4"), "dense floating-point tensors"),
        (lambda: block_round(x, "mxfp4", tail="error"), r"1 x 32 do not divide \(4, 40\)"),
        (lambda: block_round(x, "mxfp4", tail="drop"), "unknown tail 'drop'"),  # type: ignore[arg-type]
        (lambda: block_round(x, "mxfp4", rule="flor"), "Did you mean 'floor'"),
        (lambda: block_round(x, "mxfp4", axis=2), "no axis 2 in a tensor of 2 dimensions"),
        (lambda: block_round(x[0], "fp8-128x128"), "need 2 dimensions"),
        (lambda: block_round(x, "mxfp4", out=x[:2]), "out must have shape"),
        (lambda: block_round(x, "mxfp4", rounding="near"), "unknown rounding 'near'"),  # type: ignore[arg-type]
        (lambda: round_to(x, "mxfp4"), "use block_round"),
    ]
    for call, message in cases:
        with pytest.raises(FormatError, match=message):
            call()


def test_nothing_and_meta() -> None:
    for form in BLOCKS:
        empty = block_round(torch.empty(0, 32), form)
        assert empty.values.shape == (0, 32)
        there = block_round(torch.empty(256, 256, device="meta"), form)
        here = block_round(torch.zeros(256, 256), form)
        assert there.values.shape == here.values.shape
        assert there.scales.shape == here.scales.shape
        assert not here.values.any()


@pytest.mark.parametrize("name", ["fp8-tensor", "fp8-rowwise", "fp8-1x128", "fp8-128x128", "nvfp4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fp32_scales_stay_apart_when_asked(name: str, dtype: torch.dtype) -> None:
    """The values times the fp32 scales are those of the plain call; alone, they are elements."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(160, 300, generator=generator, dtype=dtype) * 3
    plain, apart = block_round(x, name), block_round(x, name, apart=True)
    assert torch.equal(plain.scales, apart.scales)
    form = block(name)
    assert isinstance(form, BlockFormat)
    elements = apart.values
    if name == "nvfp4":
        spread = apart.scales.repeat_interleave(16, 1)[:, :300].to(dtype)
        elements = torch.where(spread == 0, 0, elements / spread)
    assert torch.equal(round_to(elements, form.element), elements)
    assert elements.abs().max() == float(form.element.max)
    if name == "fp8-tensor":
        assert torch.equal(apart.values.float() * apart.scales, plain.values.float())


def test_power_of_two_scales_stay_in() -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(2))
    plain, apart = block_round(x, "mxfp8-e4m3"), block_round(x, "mxfp8-e4m3", apart=True)
    assert torch.equal(plain.values, apart.values)


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float16])
def test_the_input_is_left_as_it_was(given: torch.dtype, wanted: torch.dtype) -> None:
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(3)).to(given)
    before = x.clone()
    values = block_round(x, "mxfp8-e4m3", dtype=wanted).values
    assert torch.equal(x, before)
    equal(values.float(), block_round(before.float(), "mxfp8-e4m3").values)
