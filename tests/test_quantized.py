"""Products with quantized operands: what is multiplied, where, and that nothing else changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from floatscope.errors import FormatError, RecipeError
from floatscope.formats import BlockFormat
from floatscope.recipes import CATALOGUE, Recipe, quantized
from floatscope.recipes.backend import has_units
from floatscope.recipes.compute import compute
from floatscope.recipes.formats_of import Kept, Operand, Operands
from floatscope.recipes.keeping_out import kept_weights
from floatscope.recipes.multiply import multiply
from floatscope.recipes.quantize import Quantized, carrier_of, quantize
from floatscope.recipes.quantized import Memory, Report
from floatscope.rounding import block_round, round_to
from floatscope.rounding.hadamard import Hadamard, turned

LOW = [name for name, r in CATALOGUE.items() if r.operands is not None]
FAST = [name for name in LOW if name != "fp8-deepseek"]


def everywhere(operands: Operands, products: str = "bf16") -> Recipe:
    return Recipe(
        name="test", products=products, operands=operands, kept=Kept(head=False),  # type: ignore[arg-type]
        summary="", source="",
    )  # fmt: skip


def alike(format: str, **how: Any) -> Operands:
    operand = Operand(format=format, **how)
    return Operands(activation=operand, weight=operand, gradient=operand)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def run(
    recipe: Recipe, model: nn.Module, loss_of: Callable[[], Tensor], memory: Memory | None = None
) -> tuple[dict[str, Tensor], Report]:
    model.zero_grad()
    with compute(recipe, model, memory=memory) as report:
        loss = loss_of()
    loss.backward()
    assert report is not None
    return gradients(model), report


def kinds(report: Report) -> Counter[str]:
    found: Counter[str] = Counter()
    for (_, kind), number in report.converted.items():
        found[kind] += number
    return found


class Watched:
    """Records what is multiplied with what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Quantized, Quantized, Tensor]] = []
        inner = quantized.multiply

        def multiply(a: Quantized, b: Quantized, *rest: Any) -> Tensor:
            result = inner(a, b, *rest)
            kept = (replace(q, values=q.values.clone()) for q in (a, b))  # their memory is lent
            self.calls.append((*kept, result.clone()))
            return result

        monkeypatch.setattr(quantized, "multiply", multiply)


def values(found: Quantized, x: Tensor, form: str, axis: int) -> None:
    """The operand is `x` in the format, in blocks along `axis`, times the scale that is apart."""
    expected = block_round(x.float(), form, axis=axis).values
    actual = found.values.float()
    if found.scale is not None:
        actual = actual * found.scale
    if found.block_scales is None:
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("form", ["mxfp8-e4m3", "mxfp6-e3m2", "mxfp4", "fp8-tensor", "fp8-rowwise"])
def test_operands_of_all_three_products(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(80, 48, bias=False)
    x = torch.randn(70, 80, requires_grad=True)
    g = torch.randn(70, 48).bfloat16()
    watched = Watched(monkeypatch)
    with compute(everywhere(alike(form)), layer):
        y = layer(x)
    y.backward(g)
    w, xb = layer.weight.detach(), x.detach().bfloat16()
    (a, b, result), *backward = watched.calls
    values(a, xb, form, -1)
    values(b, w.t(), form, -2)
    assert torch.equal(result, y)
    by_shape = {tuple(r.shape): (one, two) for one, two, r in backward}
    one, two = by_shape[70, 80]
    values(one, g, form, -1)
    values(two, w, form, -2)
    one, two = by_shape[48, 80]
    values(one, g.t(), form, -1)
    values(two, xb, form, -2)


@pytest.mark.parametrize("form", ["mxfp8-e4m3", "fp8-tensor", "fp8-rowwise", "nvfp4", "fp8-1x128"])
def test_products_are_those_of_the_values(form: str) -> None:
    """fp32 sums of exact products, rounded once to bf16, up to the order of the sum."""
    torch.manual_seed(1)
    layer = nn.Linear(256, 96, bias=False)
    x = torch.randn(64, 256).bfloat16()
    with torch.no_grad(), compute(everywhere(alike(form)), layer):
        y = layer(x)
    a = block_round(x.float(), form).values.double()
    b = block_round(layer.weight.detach().t(), form, axis=-2).values.double()
    exact = a @ b
    error = (y.double() - exact).abs()
    assert (error <= exact.abs() * 2.0**-8 + 1e-4).all()
    assert ((exact.bfloat16() == y).double().mean()) > 0.98


def test_float_formats_are_plain_casts() -> None:
    x = torch.randn(32, 8) * 100
    found = quantize(x, Operand(format="tf32", rounding="nearest-away"), -1)
    assert torch.equal(found.values, round_to(x, "tf32", rounding="nearest-away"))
    assert found.scale is None


def test_a_recipe_of_fp32_is_plain_pytorch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 8))
    x = torch.randn(16, 64)
    model(x).square().mean().backward()
    plain = gradients(model)
    model.zero_grad()
    with compute(everywhere(alike("fp32"), "fp32"), model):
        loss = model(x).square().mean()
    loss.backward()
    for name, gradient in gradients(model).items():
        assert torch.equal(gradient, plain[name])
    # The engine itself, with operands that tf32 leaves as they are.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    x = x.bfloat16().float()
    engine = everywhere(
        Operands(activation=Operand(format="tf32"), weight=Operand(format="tf32"),
                 gradient=Operand(format="fp32")), "fp32"
    )  # fmt: skip
    first = nn.Sequential(model[0])
    first.zero_grad()
    first(x).sum().backward()
    plain = gradients(first)
    found, report = run(engine, first, lambda: first(x).sum())
    assert kinds(report) == {"forward": 1, "weight_gradient": 1}
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def lstm() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = torch.randn(3, 5, 8)
    return nn.LSTM(8, 16, batch_first=True), lambda m: m(x)[0].square().mean()


def cnn() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = torch.randn(4, 3, 12, 12)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, dilation=2),
        nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    return model, lambda m: m(x).square().mean()


def conv1d() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = torch.randn(4, 6, 20)
    return nn.Conv1d(6, 8, 5, stride=3, padding=2), lambda m: m(x).square().mean()


def encoder() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = torch.randn(3, 5, 16)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0, activation="gelu")
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    toward = torch.randn(3, 5, 16)  # the norm of a normalized output has no gradient
    return model, lambda m: (m(x) * toward).mean()


def functional() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.randn(8, 12))
            self.b = nn.Parameter(torch.randn(12, 4))
            self.c = nn.Parameter(torch.randn(2, 4, 3))
            self.v = nn.Parameter(torch.randn(3, 1))

        def forward(self, x: Tensor) -> Tensor:
            h = torch.addmm(torch.zeros(12), x, self.a)
            h = torch.einsum("ij,jk->ik", h, self.b).view(2, -1, 4)
            return torch.bmm(h, self.c) @ self.v

    x = torch.randn(6, 8)
    return Model(), lambda m: m(x).square().mean()


MODELS = {
    lstm: {"forward": 6, "input_gradient": 4, "weight_gradient": 6},
    cnn: {"forward": 3, "input_gradient": 2, "weight_gradient": 3},
    conv1d: {"forward": 1, "weight_gradient": 1},
    encoder: {"forward": 8, "input_gradient": 7, "weight_gradient": 8},
    functional: {"forward": 4, "input_gradient": 3, "weight_gradient": 4},
}


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_every_product_of_a_weight_is_converted(make: Any) -> None:
    torch.manual_seed(0)
    model, loss_of = make()
    loss_of(model).backward()
    exact = gradients(model)
    found, report = run(everywhere(alike("mxfp8-e4m3")), model, lambda: loss_of(model))
    expected = dict(MODELS[make])
    if make is lstm:  # the products of the input at each of five steps, in one
        assert kinds(report)["forward"] >= expected["forward"]
        assert kinds(report)["weight_gradient"] == kinds(report)["forward"]
    else:
        assert kinds(report) == expected
    assert not report.kept
    for name, gradient in found.items():
        error = (gradient - exact[name]).norm() / exact[name].norm()
        assert 0 < error < 0.2 or gradient.ndim == 1, name


def test_convolutions_are_their_matrix_products() -> None:
    """With formats that lose nothing here, the same as Torch's up to the order of sums."""
    torch.manual_seed(0)
    for make in (cnn, conv1d):
        model, loss_of = make()
        loss_of(model).backward()
        exact = gradients(model)
        recipe = everywhere(alike("e8m23"), "fp32")
        found, _ = run(recipe, model, lambda m=model, loss=loss_of: loss(m))
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, exact[name], rtol=1e-4, atol=1e-6)


class Blocks(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)
        )
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if self.how == "plain":
                x = x + block(x)
            else:
                x = x + checkpoint(block, x, use_reentrant=self.how == "reentrant")
        return x


@pytest.mark.parametrize("name", FAST)
def test_checkpointing_and_backward_inside_change_no_bit(name: str) -> None:
    x = torch.randn(16, 32, requires_grad=True)
    found = {}
    for how in ("plain", "reentrant", "not reentrant", "inside"):
        torch.manual_seed(3)
        model = Blocks("plain" if how == "inside" else how)
        memory = Memory(seed=5)
        if how == "inside":
            with compute(CATALOGUE[name], model, memory=memory):
                model(x).square().mean().backward()
            found[how] = gradients(model)
        else:
            found[how], _ = run(
                CATALOGUE[name], model, lambda m=model: m(x).square().mean(), memory
            )
    for how, one in found.items():
        for parameter, gradient in one.items():
            assert torch.equal(gradient, found["plain"][parameter]), (how, parameter)


@pytest.mark.parametrize("name", [*LOW, "fp32", "bf16-mixed"])
def test_power_of_two_loss_scales_change_no_bit(name: str) -> None:
    """Scales follow the gradient, whose random bits are the same, so nothing is flushed."""
    torch.manual_seed(0)
    model, x = Blocks("plain"), torch.randn(16, 32)

    def scaled(scale: float) -> dict[str, Tensor]:
        model.zero_grad()
        with compute(CATALOGUE[name], model, memory=Memory(seed=1)):
            loss = model(x).float().square().mean() * scale
        loss.backward()
        return gradients(model)

    plain = scaled(1.0)
    for exponent in (-40, -8, -1, 1, 5, 12, 16, 24):
        for parameter, gradient in scaled(2.0**exponent).items():
            assert torch.equal(gradient * 2.0**-exponent, plain[parameter]), exponent


def test_square_weight_blocks_commute_with_transposition() -> None:
    w = torch.randn(64, 48)
    for form, block in (("nvfp4", (16, 16)), ("fp8-128x128", (128, 128))):
        rows = block_round(w, form, block=block).values
        columns = block_round(w.t().contiguous(), form, block=block, axis=-2).values
        assert torch.equal(rows, columns.t())


def test_the_hadamard_transform_cancels() -> None:
    assert not np.array_equal(Hadamard(16, 3).signs, Hadamard(16, 4).signs)
    a, b = torch.randn(8, 56), torch.randn(56, 5)  # a rest of 8 is left alone
    product = turned(a, Hadamard(16, 3), -1) @ turned(b, Hadamard(16, 3), -2)
    torch.testing.assert_close(product, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [2, 16, 32])
def test_the_hadamard_transform_is_sylvesters(size: int) -> None:
    matrix = torch.tensor(scipy.linalg.hadamard(size), dtype=torch.float32)
    expected = torch.tensor(Hadamard(size, 3).signs)[:, None] * matrix * np.float32(size**-0.5)
    assert torch.equal(turned(torch.eye(size), Hadamard(size, 3), -1), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [1, 37, 64, 200])
@pytest.mark.parametrize("form", ["nvfp4", "mxfp4", "fp8-rowwise"])
def test_blocks_turned_on_the_way_are_those_of_the_transform(
    form: str, columns: int, dtype: torch.dtype
) -> None:
    x = torch.randn(96, columns).to(dtype)
    for transform in (Hadamard(16, 3), Hadamard(32, 4)):
        for about in ({}, {"rounding": "stochastic", "key": 7}):
            expected = block_round(turned(x, transform, -2), form, axis=-2, apart=True, **about)
            found = block_round(x, form, axis=-2, apart=True, transform=transform, **about)
            across = block_round(x.mT, form, axis=-1, apart=True, transform=transform)
            for one, other in zip(found, expected, strict=True):
                assert one is other or torch.equal(one, other)
            if not about:
                assert torch.equal(across.values, found.values.mT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_blocks_turned_on_the_way_in_other_dtypes(dtype: torch.dtype) -> None:
    x, transform = torch.randn(64, 40), Hadamard(16, 3)
    for about in ({}, {"rounding": "stochastic", "key": 7, "transposed": True}):
        expected = block_round(turned(x, transform, -2), "nvfp4", axis=-2, **about).values
        found = block_round(x, "nvfp4", axis=-2, transform=transform, dtype=dtype, **about).values
        assert torch.equal(found, expected.to(dtype))


@pytest.mark.parametrize("value", [math.inf, math.nan, 3e38, 1e-45])
def test_blocks_turned_on_the_way_at_the_edges(value: float) -> None:
    x, transform = torch.randn(64, 40), Hadamard(16, 3)
    x[17, 5] = value
    for form in ("nvfp4", "mxfp4"):
        expected = block_round(turned(x, transform, -2), form, axis=-2)
        found = block_round(x, form, axis=-2, transform=transform)
        assert torch.equal(found.values.nan_to_num(9e9), expected.values.nan_to_num(9e9))


@pytest.mark.parametrize("shape", [(64, 48), (96, 37), (40, 200), (16, 1)])
@pytest.mark.parametrize("form", ["nvfp4", "mxfp4", "mxfp8-e4m3", "fp8-tensor", "fp8-128x128"])
@pytest.mark.parametrize("axis", [-1, -2])
def test_elements_counted_down_the_columns(form: str, axis: int, shape: tuple[int, int]) -> None:
    x, about = torch.randn(shape), {"rounding": "stochastic", "key": 7}
    expected = block_round(x.mT.contiguous(), form, axis=-3 - axis, **about)
    found = block_round(x, form, axis=axis, transposed=True, **about)
    assert torch.equal(found.values, expected.values.mT)
    assert torch.equal(found.scales, expected.scales.mT if found.scales.ndim else expected.scales)
    turning = {"transform": Hadamard(16, 3), **about}
    expected = block_round(x.mT.contiguous(), form, axis=-3 - axis, **turning)
    assert torch.equal(
        block_round(x, form, axis=axis, transposed=True, **turning).values, expected.values.mT
    )


def test_only_a_matrix_is_counted_down_the_columns() -> None:
    with pytest.raises(FormatError, match="only a matrix has a transpose"):
        block_round(torch.randn(2, 16, 16), "nvfp4", rounding="stochastic", key=1, transposed=True)


def test_a_transform_is_no_number() -> None:
    with pytest.raises(FormatError, match=r"is a Hadamard\(size, seed\), not 16"):
        block_round(torch.randn(32, 16), "nvfp4", transform=16)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 12, -4])
def test_a_transform_is_of_a_power_of_two(size: int) -> None:
    with pytest.raises(FormatError, match="power of two"):
        Hadamard(size)


@pytest.mark.skipif(not has_units("bf16", torch.device("cpu")), reason="no bf16 units")
@pytest.mark.parametrize("stacked", [False, True], ids=["matrix", "stacked"])
def test_units_scale_before_they_round(stacked: bool) -> None:
    shape = (2,) if stacked else ()
    a = torch.randint(-8, 9, (*shape, 40, 32)).bfloat16()  # sums are exact in fp32
    for b in (torch.randint(-8, 9, (*shape, 32, 48)), torch.randint(-8, 9, (*shape, 48, 32)).mT):
        b = b.bfloat16()
        scales = torch.tensor(0.0123456), torch.tensor(3.21)
        product = multiply(Quantized(a, scales[0]), Quantized(b, scales[1]), "fp32", torch.bfloat16)
        exact = (a.float() @ b.float()) * (scales[0] * scales[1])
        assert torch.equal(product, exact.bfloat16())
        assert not torch.equal(product, ((a @ b) * (scales[0] * scales[1])))


def test_a_gradient_is_quantized_once_for_its_two_products(monkeypatch: Any) -> None:
    asked: list[tuple[int, ...]] = []

    def counted(x: torch.Tensor, *rest: Any) -> Quantized:
        asked.append(tuple(x.shape))
        return quantize(x, *rest)

    monkeypatch.setattr("floatscope.recipes.quantized.quantize", counted)
    layer, x = nn.Linear(32, 48, bias=False), torch.randn(64, 32, requires_grad=True)
    with compute(everywhere(alike("fp8-tensor")), layer):
        layer(x).sum().backward()
    assert len(asked) == 5  # the input and the weight twice each, along either dimension


@pytest.mark.parametrize("form", ["mxfp8-e4m3", "fp8-tensor", "nvfp4"])
def test_an_activation_is_quantized_once_for_the_layers_it_enters(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autocast makes a copy of it for each, and its gradients' products come back to them."""
    layers = nn.ModuleList(nn.Linear(32, 48, bias=False) for _ in range(3))
    x, recipe = torch.randn(64, 32, requires_grad=True), everywhere(alike(form))

    def loss_of(given: list[Tensor]) -> Tensor:
        outputs = (layer(one).float() for layer, one in zip(layers, given, strict=True))
        return torch.stack([output.square().sum() for output in outputs]).sum()

    apart, _ = run(recipe, layers, lambda: loss_of([x.clone() for _ in layers]))
    asked: list[int] = []

    def counted(given: Tensor, operand: Operand, axis: int, *rest: Any) -> Quantized:
        if operand.format == form and 64 in given.shape and 32 in given.shape:
            asked.append(axis)
        return quantize(given, operand, axis, *rest)

    monkeypatch.setattr("floatscope.recipes.quantized.quantize", counted)
    together, _ = run(recipe, layers, lambda: loss_of([x, x, x]))
    assert len(asked) == 2  # along either dimension
    for name, gradient in together.items():
        assert torch.equal(gradient, apart[name])


def test_what_was_changed_is_quantized_again() -> None:
    layer, x = nn.Linear(32, 48, bias=False), torch.randn(64, 32, requires_grad=True) * 1
    with compute(everywhere(alike("mxfp8-e4m3")), layer):
        one = layer(x)
        assert torch.equal(layer(x), one)
        half, quarter = x.bfloat16(), x.bfloat16()
        assert torch.equal(layer(half), one)
        quarter.mul_(0.25)
        assert torch.equal(layer(quarter), one * 0.25)  # a power of two
        assert torch.equal(layer(half), one)
        x.mul_(0.5)
        assert torch.equal(layer(x), one * 0.5)
        assert torch.equal(layer(x[:32]), one[:32] * 0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_memory_of_numpy_is_looked_at_again(dtype: Any) -> None:
    layer, memory = nn.Linear(32, 48, bias=False), np.ones((64, 32), dtype)
    x = torch.from_numpy(memory)
    with torch.no_grad(), compute(everywhere(alike("mxfp8-e4m3")), layer):
        one = layer(x)
        memory *= 2  # Torch does not see it
        assert torch.equal(layer(x), one * 2)
    with compute(everywhere(alike("mxfp8-e4m3")), layer):
        memory *= 2
        assert torch.equal(layer(x), one * 4)
        memory *= 2
        assert torch.equal(layer(x), one * 8)


def test_delayed_scales_come_from_the_steps_before() -> None:
    operand = Operand(format="fp8-tensor", history=2)
    recipe = everywhere(Operands(activation=operand, weight=operand, gradient=operand))
    layer, memory = nn.Linear(4, 4, bias=False), Memory()
    for size in (1.0, 8.0, 2.0, 2.0):
        x = torch.full((2, 4), size)
        memory.step += 1
        with torch.no_grad(), compute(recipe, layer, memory=memory):
            layer(x)
    name = "weight/forward/activation"
    assert memory.largest[name] == [2.0, 2.0]
    x = torch.full((2, 4), 16.0)
    found = quantize(x, operand, -1, amax=2.0)
    assert found.scale is not None
    assert torch.equal(found.values.float() * found.scale, torch.full((2, 4), 2.0))  # saturated


def test_what_is_kept() -> None:
    model = nn.ModuleDict({
        "embedding": nn.Embedding(100, 16),
        "body": nn.ModuleList(nn.Linear(16, 16) for _ in range(4)),
        "head": nn.Linear(16, 100),
    })  # fmt: skip
    assert kept_weights(model, Kept()) == {"head.weight": "the head"}
    assert kept_weights(model, Kept(head=False)) == {}
    found = kept_weights(model, Kept(first=1, last=1, names=("body.2",)))
    assert set(found) == {"body.0.weight", "body.2.weight", "body.3.weight", "head.weight"}
    assert kept_weights(model, Kept(last_share=0.5, head=False)).keys() == {
        "body.2.weight", "body.3.weight", "head.weight"
    }  # fmt: skip


def test_kept_products_are_those_of_bf16() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 8)), torch.randn(8, 32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
    recipe = Recipe(
        name="t", products="bf16", operands=alike("mxfp4"), kept=Kept(names=("*",)),
        summary="", source="",
    )  # fmt: skip
    with compute(recipe, model) as report:
        assert torch.equal(model(x), expected)
    assert report is not None
    assert not report.converted
    assert set(report.kept) == {"0.weight", "1.weight"}


def test_two_layers_that_share_an_input_are_told_apart() -> None:
    torch.manual_seed(0)
    q, k = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
    model, x = nn.ModuleDict({"q": q, "k": k}), torch.randn(8, 32)
    recipe = Recipe(
        name="t", products="bf16", operands=alike("mxfp4"), kept=Kept(names=("q",), head=False),
        summary="", source="",
    )  # fmt: skip
    found, report = run(recipe, model, lambda: (q(x) + k(x)).float().square().mean())
    assert set(report.converted) == {("k.weight", "forward"), ("k.weight", "weight_gradient")}
    assert not torch.equal(found["q.weight"], found["k.weight"])


def test_attention_stays_in_bf16() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 8, 16, requires_grad=True), torch.randn(2, 16, 8, requires_grad=True)
    layer = nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        expected = torch.autograd.grad((a @ b).float().square().sum(), (a, b))
    with compute(everywhere(alike("mxfp4")), layer) as report:
        loss = (a @ b).float().square().sum()
    assert all(map(torch.equal, torch.autograd.grad(loss, (a, b)), expected))
    assert report is not None
    assert report.without_weight == 3


def test_zeros_infinities_and_nan_pass() -> None:
    layer = nn.Linear(64, 8, bias=False)
    for name in FAST:
        with torch.no_grad(), compute(CATALOGUE[name], nn.Sequential(layer, nn.Linear(8, 8))):
            assert torch.equal(layer(torch.zeros(4, 64)), torch.zeros(4, 8))
            x = torch.ones(4, 64)
            x[1, 3] = torch.nan
            y = layer(x)
        assert y[1].isnan().all(), name


def test_a_gradient_of_a_gradient_is_refused() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)
    with compute(everywhere(alike("mxfp8-e4m3")), model):
        loss = model(x).float().square().sum()
    with pytest.raises(RecipeError, match="not differentiable twice"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_offloaded_operands_change_no_bit() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 8)), torch.randn(8, 32)
    recipe = everywhere(CATALOGUE["fp8-current"].operands or alike("mxfp8-e4m3"))
    plain, _ = run(recipe, model, lambda: model(x).float().square().sum())
    copies = torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone())
    with copies:
        found, report = run(recipe, model, lambda: model(x).float().square().sum())
    assert kinds(report)["weight_gradient"] == 2
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_compiled_modules_are_refused() -> None:
    model = nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager"))
    with pytest.raises(RecipeError, match="is compiled"), compute(CATALOGUE["mxfp8"], model):
        pass


@pytest.mark.parametrize("name", LOW)
def test_carriers_hold_every_value(name: str) -> None:
    operands = CATALOGUE[name].operands
    assert operands is not None
    x = torch.randn(64, 64) * torch.logspace(-6, 6, 64)
    for operand in {operands.activation, operands.weight, operands.gradient}:
        form = operand.form
        if isinstance(form, BlockFormat):
            exact = block_round(
                x, form, apart=True, block=operand.block, rule=operand.rule or None
            ).values
        else:
            exact = round_to(x, form)
        assert torch.equal(exact.to(carrier_of(operand)).float(), exact)


def test_stochastic_operands_are_repeated_and_unbiased() -> None:
    operand = Operand(format="mxfp4", rounding="stochastic")
    x = torch.rand(32, 64) * 2 - 1
    total, num = torch.zeros_like(x), 400
    for key in range(num):
        total += quantize(x, operand, -1, key=key).values.float()
    assert torch.equal(quantize(x, operand, -1, 7).values, quantize(x, operand, -1, 7).values)
    step = 0.5  # the largest distance of neighbors below 1 in these blocks; sd <= step / 2
    inside = x.abs() < 0.75  # elements that no scale saturates
    assert ((total / num - x).abs()[inside] < 5 * step / 2 / num**0.5).all()


def test_linear_functions_of_derived_weights() -> None:
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(32, 16))
    x = torch.randn(8, 32)
    _, report = run(everywhere(alike("mxfp8-e4m3")), layer, lambda: layer(x).square().mean())
    assert kinds(report) == {"forward": 1, "weight_gradient": 1}
    y = F.linear(x, layer.weight, layer.bias)
    with torch.no_grad(), compute(everywhere(alike("mxfp8-e4m3")), layer):
        error = (layer(x) - y).norm() / y.norm()
    assert 0.001 < error < 0.1


@pytest.mark.parametrize("form", ["mxfp8-e4m3", "e8m23"])
def test_matrix_times_vector(form: str) -> None:
    torch.manual_seed(0)
    model = nn.ParameterDict({"w": nn.Parameter(torch.randn(6, 32))})
    x, start = torch.randn(32), torch.randn(6)
    recipe = everywhere(alike(form), "fp32")
    with torch.no_grad(), compute(recipe, model) as report:
        y = torch.addmv(start, model["w"], x, beta=0.5, alpha=2.0)
    assert report is not None
    assert kinds(report) == {"forward": 1}
    a = block_round(model["w"].detach(), form).values if form != "e8m23" else model["w"].detach()
    b = block_round(x[None], form).values[0] if form != "e8m23" else x
    torch.testing.assert_close(y, torch.addmv(start, a, b, beta=0.5, alpha=2.0))
