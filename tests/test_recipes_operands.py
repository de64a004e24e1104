"""What recipes multiply: each operand of each product against the scalar oracle and torchao.

Operands are caught on their way into `multiply`, in models that recipes compute. The blocks of the
oracle (`reference_blocks.py`) are cut here once more, by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from floatscope.formats import BlockFormat, ScaleRule
from floatscope.recipes import CATALOGUE, Recipe, multiply, quantized
from floatscope.recipes.compute import compute
from floatscope.recipes.formats_of import Kept, Operand, Operands, ProductName, RoleName
from floatscope.recipes.quantize import Quantized, quantize
from floatscope.recipes.report import Memory
from floatscope.recipes.which import Found
from floatscope.rounding import StochasticKey, block_round
from floatscope.rounding.hadamard import Hadamard
from floatscope.rounding.random_bits import random_bits
from floatscope.rounding.reference import round_value
from floatscope.rounding.reference_blocks import scaling, tensor_encode

LOW = [name for name, recipe in CATALOGUE.items() if recipe.operands is not None]
SEED = 5


class Caught(NamedTuple):
    """One product: what it was given, what it multiplied, and the result."""

    product: ProductName
    name: str
    given: dict[RoleName, Tensor]
    """As it came, in the shape in which it is multiplied."""
    operands: dict[RoleName, Quantized]
    result: Tensor
    is_left: dict[RoleName, bool]


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> list[Caught]:
    """Every product of a weight, in order."""
    products: list[Caught] = []
    now: list[tuple[Found, Tensor, Tensor]] = []
    product_of, multiplied = quantized.QuantizedProducts._product, quantized.multiply

    def product(self: Any, found: Found, left: Tensor, right: Tensor, *rest: Any) -> Tensor:
        now.append((found, left.clone(), right.clone()))
        return product_of(self, found, left, right, *rest)

    def multiply(a: Quantized, b: Quantized, *rest: Any) -> Tensor:
        found, left, right = now.pop()
        result = multiplied(a, b, *rest)
        a, b = (replace(q, values=q.values.clone()) for q in (a, b))  # their memory is lent
        products.append(
            Caught(
                found.product, found.weight.name, {found.left: left, found.right: right},
                {found.left: a, found.right: b}, result.clone(),
                {found.left: True, found.right: False},
            )
        )  # fmt: skip
        return result

    monkeypatch.setattr(quantized.QuantizedProducts, "_product", product)
    monkeypatch.setattr(quantized, "multiply", multiply)
    return products


def without_kept(name: str, **changes: Any) -> Recipe:
    recipe = CATALOGUE[name]
    assert recipe.operands is not None
    return replace(recipe, kept=Kept(head=False), operands=replace(recipe.operands, **changes))


# The oracle


@cache
def element(value: float, form: Any, rounding: Any, random: int | None) -> float:
    rounded = round_value(value, form, overflow="saturate", rounding=rounding, random=random)
    return float(rounded)


def blocks(shape: tuple[int, int], block: Any) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of each block of a matrix whose columns are contracted."""
    rows, columns = shape
    if block == "tensor":
        height, width = shape
    elif block == "row":
        height, width = 1, columns
    else:
        height, width = block
    for i in range(0, rows, height):
        for j in range(0, columns, width):
            yield slice(i, i + height), slice(j, j + width)


def random_of(key: int | None, i: int, j: int, shape: tuple[int, int], down: bool) -> int | None:
    """The random bits of element (i, j): of its place in the matrix as it was multiplied."""
    if key is None:
        return None
    return random_bits(key, j * shape[0] + i if down else i * shape[1] + j)


def oracle(x: Tensor, operand: Operand, *, down: bool, key: int | None) -> tuple[Tensor, Tensor]:
    """What is multiplied, and what each element still has to be multiplied by.

    Args:
        x: a matrix in fp32 or narrower, of which the columns are contracted, or the rows, `down`.
        operand: the format and its choices.
        down: whether the rows are contracted.
        key: of stochastic rounding.
    """
    if down:
        values, left_over = _oracle(x.float().T.numpy(), operand, True, key)
        return values.T, left_over.T
    return _oracle(x.float().numpy(), operand, False, key)


def _oracle(x: Any, operand: Operand, down: bool, key: int | None) -> tuple[Tensor, Tensor]:
    form, how = operand.form, operand.rounding
    values, left_over = np.empty_like(x), np.ones_like(x)
    if not isinstance(form, BlockFormat):
        for place in np.ndindex(x.shape):
            random = random_of(key, *place, x.shape, down)
            values[place] = float(round_value(float(x[place]), form, rounding=how, random=random))
        return torch.from_numpy(values), torch.from_numpy(left_over)
    form = replace(form, rule=ScaleRule(operand.rule) if operand.rule else form.rule)
    encode = tensor_encode(np.abs(x).max(), form) if form.rule is ScaleRule.NVFP4 else None
    for rows, columns in blocks(x.shape, operand.block or form.block):
        amax = np.abs(x[rows, columns]).max()
        scaled = scaling(amax, form, encode)
        folded, rest = _folded(amax, form, encode, scaled.scale)
        left_over[rows, columns] = rest
        for i in range(*rows.indices(x.shape[0])):
            for j in range(*columns.indices(x.shape[1])):
                value = x[i, j]
                value = value / scaled.scale if scaled.encode is None else value * scaled.encode
                random = random_of(key, i, j, x.shape, down)
                values[i, j] = np.float32(element(float(value), form.element, how, random)) * folded
    return torch.from_numpy(values), torch.from_numpy(left_over)


def _folded(amax: Any, form: BlockFormat, encode: Any, scale: Any) -> tuple[Any, Any]:
    """The factor that elements have in the operand, and the one that the result has."""
    if encode is not None:
        wanted = amax * (encode * (np.float32(1) / np.float32(form.element.max)))
        return np.float32(float(round_value(float(wanted), form.scale, overflow="saturate"))), (
            np.float32(1) / encode
        )
    if form.scale.fraction_bits == 0:
        return scale, np.float32(1)
    return np.float32(1), scale


def left_over(operand: Quantized, is_left: bool) -> Tensor:
    """What each element of an operand still has to be multiplied by."""
    shape = operand.values.shape
    if operand.block_scales is not None:
        assert operand.block is not None
        height, width = operand.block if is_left else operand.block[::-1]
        scales = operand.block_scales.repeat_interleave(height, 0).repeat_interleave(width, 1)
        return scales[: shape[0], : shape[1]]
    return torch.ones(shape) if operand.scale is None else operand.scale.expand(shape)


def hadamard(x: Tensor, size: int, down: bool) -> Tensor:
    """The transform by the fast algorithm's additions, in fp32, element by element."""
    rows = x.float().numpy().T.copy() if down else x.float().numpy().copy()
    signs = Hadamard(size, SEED).signs
    for start in range(0, rows.shape[1] // size * size, size):
        part = rows[:, start : start + size] * signs
        step = 1
        while step < size:
            for first in range(0, size, 2 * step):
                for i in range(first, first + step):
                    a, b = part[:, i].copy(), part[:, i + step].copy()
                    part[:, i], part[:, i + step] = a + b, a - b
            step *= 2
        rows[:, start : start + size] = part * np.float32(size**-0.5)
    return torch.from_numpy(rows.T.copy() if down else rows)


def check(found: Caught, operands: Operands, role: RoleName, x: Tensor) -> None:
    """One operand of a product is `x`, quantized along what the product contracts."""
    how, down = operands.of(found.product, role), not found.is_left[role]
    key = None
    if how.rounding == "stochastic":
        place = f"{found.product}/{role}"
        key = StochasticKey(seed=SEED, step=1, module=found.name, role=place).value()
    if how.hadamard:
        x = hadamard(x, how.hadamard, down)
    values, rest = oracle(x, how, down=down, key=key)
    operand = found.operands[role]
    assert torch.equal(operand.values.float(), values), (found.product, role)
    assert torch.equal(left_over(operand, found.is_left[role]), rest), (found.product, role)


# d_ff 688 leaves a tail of 16 for blocks of 32; 40 tokens leave one of 8 for blocks of 32 and 16.
SHAPES = {"d_ff 688": (5, 4, 688, 3), "40 tokens": (40, 7, 9, 5)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", LOW)
def test_operands_are_the_oracles_bit_for_bit(name: str, shape: str, caught: list[Caught]) -> None:
    tokens, width, ff_width, num_outputs = SHAPES[shape]
    torch.manual_seed(len(name))
    up, down = nn.Linear(width, ff_width, bias=False), nn.Linear(ff_width, num_outputs, bias=False)
    model = nn.Sequential(up, nn.ReLU(), down)
    x, g = torch.randn(tokens, width, requires_grad=True), torch.randn(tokens, num_outputs)
    x.data[0, 0], g[0, 0] = 30, 1e-5
    recipe = without_kept(name)
    if recipe.products == "bf16":
        g = g.bfloat16()
    assert recipe.operands is not None
    with compute(recipe, model, "emulated", Memory(seed=SEED, step=1)):
        y = model(x)
    y.backward(g)
    products = {(p.name, p.product): p for p in caught}
    assert len(products) == len(caught) == 6
    hidden = products["2.weight", "forward"].given["activation"]
    assert torch.equal(hidden, products["0.weight", "forward"].result.relu())
    flowing = products["0.weight", "input_gradient"].given["gradient"]
    assert torch.equal(flowing, products["2.weight", "input_gradient"].result * (hidden > 0))
    for layer, layer_name, given, gradient in (
        (up, "0.weight", x.detach().to(g.dtype), flowing),
        (down, "2.weight", hidden, g),
    ):
        weight = layer.weight.detach()
        forward = products[layer_name, "forward"]
        check(forward, recipe.operands, "activation", given)
        check(forward, recipe.operands, "weight", weight.T)
        of_input = products[layer_name, "input_gradient"]
        check(of_input, recipe.operands, "gradient", gradient)
        check(of_input, recipe.operands, "weight", weight)
        of_weight = products[layer_name, "weight_gradient"]
        check(of_weight, recipe.operands, "gradient", gradient.T)
        check(of_weight, recipe.operands, "activation", given)


def plain(a: Quantized, b: Quantized) -> Tensor:
    """The product of operands: `torch.matmul` of them in these shapes, then what is left over."""
    if a.block_scales is None and b.block_scales is None:
        result = torch.matmul(a.values.float(), b.values.float())
        scales = [s for s in (a.scale, b.scale) if s is not None]
        if len(scales) == 2 and not scales[0].ndim and not scales[1].ndim:
            scales = [scales[0] * scales[1]]
        for scale in scales:
            result = result * scale
        return result
    result = torch.zeros(a.values.shape[0], b.values.shape[1])
    left, right = left_over(a, True), left_over(b, False)
    for start in range(0, a.values.shape[1], 128):
        part = slice(start, start + 128)
        partial = torch.matmul(a.values[:, part].float(), b.values[part].float())
        result = result + partial * left[:, start, None] * right[start]
    return result


@pytest.mark.parametrize("units", [False, True], ids=["fp32", "bf16 units"])
@pytest.mark.parametrize("name", LOW)
def test_products_are_torchs_of_the_operands(
    name: str, units: bool, caught: list[Caught], monkeypatch: pytest.MonkeyPatch
) -> None:
    if units and not multiply.has_units("bf16", torch.device("cpu")):
        pytest.skip("this processor has no bf16 units")
    monkeypatch.setattr(multiply, "has_units", lambda *_: units)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(200, 72), nn.GELU(), nn.Linear(72, 200, bias=False))
    x, toward = torch.randn(50, 200, requires_grad=True), torch.randn(50, 200)
    recipe = without_kept(name, accumulator="fp32")  # short ones are in test_accumulate.py
    with compute(recipe, model, "emulated", Memory(seed=SEED)):
        loss = (model(x).float() * toward).sum()
    loss.backward()
    assert len(caught) == 6
    for found in caught:
        a, b = sorted(found.operands, key=lambda role: not found.is_left[role])
        left, right = found.operands[a], found.operands[b]
        exact = plain(left, right)
        dtype = found.result.dtype
        if (found.product, found.name) == ("forward", "0.weight"):
            bias = model[0].bias.detach().to(dtype).float()
            # An fp32 product is added to by the same call, as in plain PyTorch.
            fused = name == "tf32"
            exact = torch.addmm(bias, left.values, right.values) if fused else exact + bias
        assert dtype is (torch.bfloat16 if recipe.products == "bf16" else torch.float32)
        is_folded = left.scale is None and left.block_scales is None and right.scale is None
        if units and left.values.dtype is torch.bfloat16 and is_folded and a != "activation":
            assert torch.equal(found.result, torch.matmul(left.values, right.values))
        if not units or dtype is torch.float32:
            assert torch.equal(found.result, exact.to(dtype)), (found.product, found.name)
        else:  # sums in another order, rounded once
            spacing = exact.abs().clamp(min=2.0**-100).log2().floor().exp2() * 2.0**-7
            assert ((found.result.float() - exact).abs() <= 0.51 * spacing + 1e-4).all()
            assert (found.result == exact.to(dtype)).double().mean() > 0.99


def test_the_parts_of_a_weight_are_quantized_from_high_precision(caught: list[Caught]) -> None:
    """Three parts of one parameter, of one shape, beside each other in memory."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(32, 2)
    q, k, v = (torch.randn(6, 1, 32) for _ in range(3))
    recipe = without_kept("mxfp8")
    with torch.no_grad(), compute(recipe, model):
        model(q, k, v)
    assert [found.name for found in caught] == [*["in_proj_weight"] * 3, "out_proj.weight"]
    assert recipe.operands is not None
    parts = model.in_proj_weight.detach().chunk(3)  # type: ignore[union-attr]
    for found, part, x in zip(caught, parts, (q, k, v), strict=False):
        check(found, recipe.operands, "weight", part.T)
        check(found, recipe.operands, "activation", x[:, 0].bfloat16())


def test_weights_of_convolutions_are_quantized_from_high_precision(caught: list[Caught]) -> None:
    """Along channels and kernel positions, however the kernels lie in memory."""
    recipe = without_kept("mxfp4")
    assert recipe.operands is not None
    for memory_format in (torch.contiguous_format, torch.channels_last):
        caught.clear()
        torch.manual_seed(0)
        model = nn.Conv2d(5, 4, 3, bias=False).to(memory_format=memory_format)
        x = torch.randn(2, 5, 6, 6, requires_grad=True)
        with compute(recipe, model, memory=Memory(seed=SEED, step=1)):
            y = model(x.to(memory_format=memory_format))
        y.backward(torch.ones_like(y))
        matrix = model.weight.detach().reshape(4, 45)
        forward, *backward = caught
        check(forward, recipe.operands, "weight", matrix.T)
        patches = nn.functional.unfold(x.detach().bfloat16().float(), 3)
        check(forward, recipe.operands, "activation", patches.transpose(1, 2).reshape(-1, 45))
        assert [found.product for found in backward] == ["input_gradient", "weight_gradient"]
        check(backward[0], recipe.operands, "weight", matrix)
        check(backward[1], recipe.operands, "activation", forward.given["activation"].float())


def test_square_blocks_of_a_weight_are_the_same_both_ways(caught: list[Caught]) -> None:
    """The weight of the input gradient is that of forward, transposed: q(W^T) = q(W)^T."""
    for name in ("nvfp4", "fp8-deepseek"):
        caught.clear()
        torch.manual_seed(0)
        layer, x = nn.Linear(200, 88), torch.randn(10, 200, requires_grad=True)
        with compute(without_kept(name), layer):
            loss = layer(x).float().square().sum()
        loss.backward()
        forward, of_input, _ = caught
        one, other = forward.operands["weight"], of_input.operands["weight"]
        assert torch.equal(one.values.float(), other.values.float().T)
        assert torch.equal(left_over(one, False), left_over(other, False).T)


# torchao


@pytest.fixture(scope="module")
def torchao() -> Any:
    """torchao 0.18's MX and NVFP4 quantizers: from a matrix to values along its columns."""
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")

    class Torchao:
        @staticmethod
        def mx(x: Tensor, dtype: torch.dtype, rule: str) -> Tensor:
            scales, codes = mx.to_mx(x.contiguous(), dtype, 32, mx.ScaleCalculationMode(rule))
            return mx.to_dtype(codes, scales, dtype, 32, torch.float32)

        @staticmethod
        def nvfp4(x: Tensor) -> tuple[Tensor, Tensor]:
            """Elements times block scales, and the scale of the tensor."""
            scale = nvfp4.per_tensor_amax_to_scale(x.abs().amax().float())
            given = nvfp4.NVFP4Tensor.to_nvfp4(x.contiguous(), per_tensor_scale=scale)
            elements = kernels.f4_unpacked_to_f32(kernels.unpack_uint4(given.qdata))
            block_scales = given.scale.float().repeat_interleave(16, -1)
            return elements.view(x.shape) * block_scales.view(x.shape), scale

    return Torchao


def all_products(recipe: Recipe, caught: list[Caught]) -> Iterator[tuple[str, Tensor, Tensor, Any]]:
    """Of all operands of all products: what it was made of, its values, columns contracted."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(96, 64), nn.GELU(), nn.Linear(64, 128))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    x, toward = torch.randn(64, 96, requires_grad=True), torch.randn(64, 128)
    with compute(recipe, model, memory=Memory(seed=SEED)):
        loss = (model(x).float() * toward).sum()
    loss.backward()
    assert len(caught) == 6
    for found in caught:
        for role, operand in found.operands.items():
            given, values = found.given[role].float(), operand.values.float()
            if role == "weight":  # it came as autocast's copy, and is made of the parameter itself
                weight = weights[found.name]
                given = weight.T if found.product == "forward" else weight
            if not found.is_left[role]:
                given, values = given.T, values.T
            yield f"{found.name}, {found.product}, {role}", given, values, operand.scale


@pytest.mark.parametrize(
    ("name", "dtype", "rule"),
    [("mxfp8", torch.float8_e4m3fn, "rceil"), ("mxfp4", torch.float4_e2m1fn_x2, "floor")],
)
def test_mx_operands_are_torchaos(
    name: str, dtype: torch.dtype, rule: str, caught: list[Caught], torchao: Any
) -> None:
    """Gradients to nearest too, which torchao has no other for."""
    operands = CATALOGUE[name].operands
    assert operands is not None
    recipe = without_kept(name, gradient=replace(operands.gradient, rounding="nearest-even"))
    for place, given, values, _ in all_products(recipe, caught):
        assert torch.equal(values, torchao.mx(given, dtype, rule)), place


def is_halfway(x: Tensor, fraction_bits: int, emin: int) -> Tensor:
    """Whether numbers lie halfway between two of a float format, but for fp32's last bits."""
    unit = x.log2().floor().clamp(min=emin).exp2() * 2.0**-fraction_bits
    rest = (x / unit) % 1 - 0.5
    return rest.abs() < 2.0**-19


def test_nvfp4_operands_are_torchaos(caught: list[Caught], torchao: Any) -> None:
    """Elements and block scales, outside of D9 and D11.

    D11, division or a reciprocal, is about block scales as well: torchao divides a block's largest
    magnitude by 6 and by the tensor's scale, Transformer Engine multiplies it by fl(S fl(1/6)). On
    bf16 numbers ties come about, of scales and of elements, and a few go the other way.
    """
    rows = Operand(format="nvfp4")
    operands = Operands(activation=rows, weight=rows, gradient=rows)
    recipe = replace(without_kept("nvfp4"), operands=operands)
    num_blocks = num_ties = 0
    for place, given, values, scale in all_products(recipe, caught):
        theirs, their_scale = torchao.nvfp4(given)
        assert math.isclose(float(scale), float(their_scale), rel_tol=2.0**-22), place
        x, ours, theirs = (t.reshape(-1, 16).double() for t in (given, values, theirs))
        amax = x.abs().amax(1, keepdim=True)
        wanted = amax / x.abs().max() * 448
        stored = block_round(given, "nvfp4").scales.double().reshape(-1, 1)
        quotients = x.abs() * 2688 / x.abs().max() / stored
        differs = (ours != theirs) & (wanted >= 2.0**-6)  # D9
        told = is_halfway(wanted, 3, -6) | is_halfway(quotients, 1, 0)
        assert told[differs].all(), place
        assert told.double().mean() < 0.02, place  # so that this says something
        num_blocks += len(x)
        num_ties += int(differs.any(1).sum())
    assert num_blocks > 4_000
    assert 0 < num_ties < num_blocks / 100


def test_d7_tiny_blocks_are_exact_where_torchao_loses_them(torchao: Any) -> None:
    x = torch.zeros(1, 32)
    x[0, 0] = 2.0**-119
    for rule, theirs in (("floor", 2.0**-120), ("rceil", 0.0)):
        ours = quantize(x, Operand(format="mxfp8-e4m3", rule=rule), -1)
        assert torchao.mx(x, torch.float8_e4m3fn, rule)[0, 0] == theirs
        assert ours.values[0, 0].float() == 2.0**-119


def test_d9_small_block_scales_of_nvfp4_are_not_clamped(torchao: Any) -> None:
    x = torch.zeros(2, 16)
    x[0, 0] = 2688
    x[1, :3] = torch.tensor([0.01, 0.005, 0.00143])
    ours = quantize(x, Operand(format="nvfp4"), -1)
    theirs, scale = torchao.nvfp4(x)
    assert scale == ours.scale == 1
    step = 2.0**-9
    assert ours.values[1, :3].tolist() == [6 * step, 3 * step, step / 2]  # Transformer Engine's
    assert theirs[1, :3].tolist() == [4 * step, 4 * step, 0]
    nothing = quantize(torch.zeros(2, 16), Operand(format="nvfp4"), -1)
    assert torch.equal(nothing.values.float(), torch.zeros(2, 16))
    assert torchao.nvfp4(torch.zeros(2, 16))[1] == 0  # and 0 / 0 is NaN
    given = torchao.nvfp4(torch.zeros(2, 16))[0]
    assert not torch.equal(given, torch.zeros(2, 16))


def test_d11_nvfp4_multiplies_by_the_reciprocal_as_torchao_does(torchao: Any) -> None:
    """Transformer Engine's rule; textbooks divide, and one tie in thousands falls otherwise."""
    scale, x = 7 * 2.0**-7, 4 * 0.02392577938735485
    given = torch.zeros(2, 16)
    given[0, 0], given[1, 0], given[1, 1] = 2688, 6 * scale, x
    ours = quantize(given, Operand(format="nvfp4"), -1)
    assert ours.values[1, 1].float() == torchao.nvfp4(given)[0][1, 1] == 2 * scale
    # The quotient itself lies below the tie.
    assert np.float32(x) / np.float32(scale) < 1.75
    assert np.float32(x) * (np.float32(1) / np.float32(scale)) == np.float32(1.75)
