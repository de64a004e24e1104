"""Products of fp8 operands by a device's units, without a device.

Torch's own checks of layouts run on tensors without data. The arithmetic around the call is held to
emulation by a stand-in that multiplies in fp32. No test calls `torch._scaled_mm` on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from floatscope.errors import RecipeError
from floatscope.recipes import CATALOGUE, Recipe, native_fp8
from floatscope.recipes.compute import compute
from floatscope.recipes.formats_of import PRODUCTS_OF, Operand
from floatscope.recipes.multiply import multiply
from floatscope.recipes.native_fp8 import (
    backend_in_words,
    multiply_by_units,
    takes_any,
    uses_units,
    why_left,
    why_no_units,
    why_not_taken,
)
from floatscope.recipes.quantize import Quantized, quantize
from floatscope.recipes.train_step import TrainStep

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
E4M3, E5M2 = Operand(format="fp8-tensor"), Operand(format="fp8-tensor", element="e5m2")
ROWS = Operand(format="fp8-rowwise")
BF16 = torch.bfloat16
SHAPES = [(1, 16, 16), (5, 32, 48), (32, 20, 17), (7, 1, 1), (33, 250, 3)]
"""M, K and N."""


def stand_in(
    left: Tensor, right: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """What the units compute, with fp32 sums; refuses what they would."""
    m, n = left.shape[0], right.shape[1]
    assert left.dtype in native_fp8.ELEMENTS.values()
    assert right.dtype in native_fp8.ELEMENTS.values()
    assert {left.dtype, right.dtype} != {torch.float8_e5m2}
    assert left.stride() == (left.shape[1], 1)
    assert right.stride() == (1, right.shape[0])
    assert left.shape[1] % 16 == right.shape[0] % 16 == n % 16 == 0
    assert a.dtype is b.dtype is torch.float32
    if a.ndim or b.ndim:
        assert (a.shape, b.shape, dtype) == ((m, 1), (1, n), BF16)
        assert a.is_contiguous()
        assert b.is_contiguous()
    assert bias is None or (bias.dtype is dtype is not torch.float32 and bias.shape == (n,))
    result = left.float() @ right.float() * (a * b if not a.ndim else a) * (1 if not a.ndim else b)
    return (result if bias is None else result + bias.float()).to(dtype)


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this machine had fp8 units."""
    monkeypatch.setattr(native_fp8, "why_no_units", lambda _device: "")
    monkeypatch.setattr(native_fp8, "_scaled_mm", stand_in)


def operands(shape: tuple[int, int, int], formats: tuple[Operand, Operand]) -> tuple[Any, Any]:
    m, k, n = shape
    generator = torch.Generator().manual_seed(m + 100 * k)
    a, b = (torch.randn(size, generator=generator) for size in ((m, k), (k, n)))
    return quantize(a, formats[0], -1), quantize(b * 1e-3, formats[1], -2)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("formats", [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2), (ROWS, ROWS)])
@pytest.mark.parametrize("add", ["nothing", "bias", "matrix"])
def test_padding_and_scales_change_nothing(
    units: None, shape: tuple[int, int, int], formats: tuple[Operand, Operand], add: str
) -> None:
    a, b = operands(shape, formats)
    added = {
        "nothing": None,
        "bias": (torch.linspace(-1, 1, shape[2]).to(BF16), 1.0, 1.0),
        "matrix": (torch.linspace(-1, 1, shape[2]).repeat(shape[0], 1), 0.5, 2.0),
    }[add]
    if add == "matrix" and formats[0] is ROWS:
        assert why_left(a, b, formats, "fp32", BF16, added).startswith("with scales a row nothing")
        return
    assert not why_left(a, b, formats, "fp32", BF16, added)
    found = multiply_by_units(a, b, formats, BF16, added)
    expected = multiply(a, b, "fp32", BF16, added)
    assert found.dtype is BF16
    assert found.stride() == expected.stride()
    # Sums in another order may round to the neighboring bf16 number.
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-6)


def test_elements_go_over_without_rounding() -> None:
    for operand, dtype in ((E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)):
        x = torch.randn(64, 64) * torch.logspace(-8, 3, 64)
        x[0, :3] = torch.tensor([torch.nan, -0.0, 0.0])
        values = quantize(x, operand, -1).values
        back = values.to(dtype).to(values.dtype)
        assert torch.equal(back.nan_to_num(), values.nan_to_num())
        assert torch.equal(back.isnan(), values.isnan())
        assert torch.equal(back.signbit(), values.signbit())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("formats", [(E4M3, E4M3), (E5M2, E4M3), (ROWS, ROWS)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_torchs_own_checks_pass(
    shape: tuple[int, int, int], formats: tuple[Operand, Operand], is_transposed: bool
) -> None:
    m, k, n = shape
    by_rows = formats[0] is ROWS
    with FakeTensorMode():
        values = (
            torch.empty(k, m, device="cuda", dtype=BF16).mT
            if is_transposed
            else (torch.empty(m, k, device="cuda", dtype=BF16))
        )
        other = (
            torch.empty(n, k, device="cuda", dtype=BF16).mT
            if is_transposed
            else (torch.empty(k, n, device="cuda", dtype=BF16))
        )
        scales = ((m, 1), (1, n)) if by_rows else ((), ())
        a, b = (
            Quantized(v, torch.empty(s, device="cuda"))
            for v, s in zip((values, other), scales, strict=True)
        )
        bias = torch.empty(n, device="cuda", dtype=BF16)
        for added in (None, (bias, 1.0, 1.0)):
            found = multiply_by_units(a, b, formats, BF16, added)
            assert (found.shape, found.dtype, found.device.type) == ((m, n), BF16, "cuda")
            assert found.is_contiguous()
        if not by_rows:
            for dtype in (torch.float16, torch.float32):
                assert multiply_by_units(a, b, formats, dtype).dtype is dtype


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ((4, 20), (20, 16), "divisible by 16"),
        ((4, 16), (16, 20), "divisible by 16"),
        ((4, 16), None, "must be col_major"),
    ],
)
def test_torchs_checks_would_refuse_what_is_not_padded(
    left: tuple[int, int], right: tuple[int, int] | None, message: str
) -> None:
    """So that passing them says something."""
    with FakeTensorMode():
        one = torch.empty(left, device="cuda", dtype=torch.float8_e4m3fn)
        rows, columns = right or (16, 32)
        other = torch.empty(columns, rows, device="cuda", dtype=torch.float8_e4m3fn).mT
        other = other if right else torch.empty(16, 32, device="cuda", dtype=other.dtype)
        scale = torch.empty((), device="cuda")
        with pytest.raises(RuntimeError, match=message):
            native_fp8._scaled_mm(one, other, scale, scale, None, BF16)


def test_the_processor_is_never_asked() -> None:
    one = torch.zeros(16, 16).to(torch.float8_e4m3fn)
    with pytest.raises(AssertionError):
        native_fp8._scaled_mm(one, one.mT, torch.ones(()), torch.ones(()), None, BF16)


def test_which_recipes_have_products_for_the_units() -> None:
    taken = {name for name, recipe in CATALOGUE.items() if takes_any(recipe.operands)}
    assert taken == {"fp8-current", "fp8-delayed", "fp8-rowwise"}
    for name in taken:
        own = CATALOGUE[name].operands
        assert own is not None
        for product, (one, other) in PRODUCTS_OF.items():
            assert not why_not_taken(own.of(product, one), own.of(product, other), "fp32")


@pytest.mark.parametrize(
    ("one", "other", "accumulator", "why"),
    [
        (E4M3, E4M3, "hopper-fp8", "the accumulator hopper-fp8 is computed bit by bit"),
        (E5M2, E5M2, "fp32", "no unit multiplies e5m2 by e5m2"),
        (E4M3, ROWS, "fp32", "one operand has a scale a tensor, the other a scale a row"),
        (ROWS, Operand(format="fp8-rowwise", element="e5m2"), "fp32", "are for e4m3fn alone"),
        (Operand(format="fp8-rowwise", element="int8"), ROWS, "fp32", "int8 is no fp8 format"),
        (Operand(format="fp8-1x128"), Operand(format="fp8-128x128"), "fp32",
         "fp8-1x128 has not one scale a tensor or a row"),
        (Operand(format="mxfp8-e4m3"), E4M3, "fp32", "mxfp8-e4m3 has not one scale"),
        (Operand(format="e4m3fn"), E4M3, "fp32", "e4m3fn has not one scale"),
        (Operand(format="bf16"), E4M3, "fp32", "bf16 is no fp8 format"),
        (Operand(format="nvfp4"), E4M3, "fp32", "e2m1fn is no fp8 format"),
    ],
)  # fmt: skip
def test_formats_that_are_left(one: Operand, other: Operand, accumulator: str, why: str) -> None:
    assert why in why_not_taken(one, other, accumulator)


def test_shapes_and_dtypes_that_are_left() -> None:
    a, b = operands((4, 16, 16), (E4M3, E4M3))
    stacked = Quantized(a.values[None], a.scale)
    assert why_left(stacked, b, (E4M3, E4M3), "fp32", BF16, None) == "matrices stacked in a batch"
    empty = Quantized(a.values[:0])
    assert why_left(empty, b, (E4M3, E4M3), "fp32", BF16, None) == "nothing to multiply"
    rows = operands((4, 16, 16), (ROWS, ROWS))
    assert "give bf16 alone, not float16" in why_left(
        *rows, (ROWS, ROWS), "fp32", torch.float16, None
    )
    wide = (torch.ones(16), 1.0, 1.0)  # an fp32 bias
    assert "nothing but a bias" in why_left(*rows, (ROWS, ROWS), "fp32", BF16, wide)


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(20, 24), nn.Tanh(), nn.Linear(24, 33, bias=False), nn.Tanh(), nn.Linear(33, 5)
    )


def step_of(recipe: Recipe, model: nn.Module) -> tuple[Any, list[Tensor]]:
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe)
    x = torch.randn(3, 7, 20, generator=torch.Generator().manual_seed(1))
    result = step(lambda m: m(x).float().square().mean())
    return result, [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", ["fp8-current", "fp8-delayed", "fp8-rowwise"])
def test_a_step_takes_all_products_of_weights_to_the_units(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated, expected = step_of(CATALOGUE[name], net())
    assert not emulated.converted.native
    assert not emulated.converted.not_native
    monkeypatch.setattr(native_fp8, "why_no_units", lambda _device: "")
    monkeypatch.setattr(native_fp8, "_scaled_mm", stand_in)
    native, found = step_of(CATALOGUE[name], net())
    assert native.converted.native == native.converted.converted == emulated.converted.converted
    assert native.converted.native.total() == 5  # of two weights; the first needs no input gradient
    assert not native.converted.not_native
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 2e-2 * other.norm()


def test_what_is_left_is_emulated_and_said(units: None) -> None:
    mixed = Recipe.from_dict({
        "name": "mixed", "base": "fp8-current", "operands": {"weight": {"element": "e5m2"}},
    })  # fmt: skip
    result, _ = step_of(mixed, net())
    assert {product for _, product in result.converted.native} == {"forward", "weight_gradient"}
    assert result.converted.not_native == {"no unit multiplies e5m2 by e5m2": 1}
    other, _ = step_of(CATALOGUE["mxfp8"], net())
    assert not other.converted.native
    assert not other.converted.not_native


def test_attention_stays_with_autocast(units: None) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 32)
    with compute(CATALOGUE["fp8-current"], model) as report:
        model(x).float().square().mean().backward()
    assert report is not None
    assert report.native == report.converted
    assert report.without_weight  # of queries, keys and values
    assert not report.not_native


def test_reports_of_micro_batches_add_up(units: None) -> None:
    model, mixed = net(), Recipe.from_dict({
        "name": "mixed", "base": "fp8-current", "operands": {"weight": {"element": "e5m2"}},
    })  # fmt: skip
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mixed)
    x = torch.randn(4, 20)
    result = step([lambda m: m(x).float().sum(), lambda m: m(x).float().sum()])
    assert result.converted is not None
    assert result.converted.native.total() == 8
    assert result.converted.not_native.total() == 2


@pytest.fixture
def old_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """As if this machine had a CUDA device of some capability."""

    def set_to(major: int, minor: int) -> None:
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (major, minor))
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)

    return set_to


def test_devices_without_units(old_device: Callable[[int, int], None]) -> None:
    fp8, mxfp8, bf16 = (CATALOGUE[name] for name in ("fp8-current", "mxfp8", "bf16-mixed"))
    old_device(8, 0)
    assert why_no_units(CUDA) == "the device has compute capability 8.0, and fp8 units need 8.9"
    assert not uses_units(fp8, CUDA)
    with pytest.raises(RecipeError, match=r"fp8-current cannot multiply in fp8 natively: the device"
                       r" has compute capability 8\.0.*Choose the backend auto"):  # fmt: skip
        uses_units(fp8, CUDA, "native")
    assert not uses_units(mxfp8, CUDA, "native")  # nothing that any unit would take
    assert backend_in_words(fp8, CUDA) == "native, operands emulated"
    assert backend_in_words(bf16, CUDA) == "native"
    for capability in ((8, 9), (9, 0), (10, 0)):
        old_device(*capability)
        assert uses_units(fp8, CUDA, "native")
        assert backend_in_words(fp8, CUDA) == "native, operands native"
        assert backend_in_words(mxfp8, CUDA) == "native, operands emulated"


def test_without_a_device() -> None:
    fp8 = CATALOGUE["fp8-current"]
    assert why_no_units(CPU) == "fp8 units are CUDA devices', and this is cpu"
    assert not uses_units(fp8, CPU)
    assert not uses_units(fp8, CPU, "native")  # there it speaks of 16-bit products alone
    assert backend_in_words(fp8, CPU, "emulated") == "emulated"
    if not torch.cuda.is_available():
        assert why_no_units(CUDA) == "Torch finds no CUDA device"
        with pytest.raises(RecipeError, match="Torch finds no CUDA device"):
            uses_units(fp8, CUDA, "native")


@pytest.mark.skipif(bool(why_no_units(CUDA)), reason=why_no_units(CUDA) or "has fp8 units")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("formats", [(E4M3, E4M3), (E5M2, E4M3), (ROWS, ROWS)])
def test_on_a_device(shape: tuple[int, int, int], formats: tuple[Operand, Operand]) -> None:
    a, b = (Quantized(q.values.cuda(), q.scale.cuda()) for q in operands(shape, formats))
    found = multiply_by_units(a, b, formats, BF16)
    expected = multiply(a, b, "fp32", torch.float32)
    bound = 2**-7 * expected.abs() + 2**-10 * expected.abs().max()  # 13 bits between promotions
    assert bool(((found.float() - expected).abs() <= bound).all())
