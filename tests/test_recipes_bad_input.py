"""What a recipe is not made for: the right result, or one message that says what is wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from floatscope.errors import RecipeError
from floatscope.recipes import CATALOGUE, Recipe, recipe
from floatscope.recipes.compute import compute
from floatscope.recipes.formats_of import Kept
from floatscope.recipes.train_step import TrainStep

LOW = [name for name, r in CATALOGUE.items() if r.operands is not None]
X = torch.randn(5, 33, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(33, 20), nn.ReLU(), nn.Linear(20, 8))


def loss_of(model: nn.Module) -> Tensor:
    return model(X).float().square().mean()


def step_of(model: nn.Module, name: str | Recipe) -> TrainStep:
    trained = [p for p in model.parameters() if p.requires_grad]
    return TrainStep(model, torch.optim.SGD(trained, lr=0.1), name, backend="emulated")


class Beside(nn.Module):
    """A model with a parameter that it does not use."""

    def __init__(self, parameter: Tensor, *, trained: bool) -> None:
        super().__init__()
        self.beside = nn.Parameter(parameter, requires_grad=trained)
        self.body = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("name", ["fp32", "fp16-mixed", "mxfp8", "bf16-sr"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64])
def test_parameters_that_are_no_weights_change_nothing(name: str, dtype: torch.dtype) -> None:
    model, plain = Beside(torch.ones(3, 3, dtype=dtype), trained=False), net()
    found, expected = step_of(model, name)(loss_of), step_of(plain, name)(loss_of)
    assert (found.loss, found.grad_norm) == (expected.loss, expected.grad_norm)
    assert torch.equal(model.beside, torch.ones(3, 3, dtype=dtype))


@pytest.mark.parametrize("name", CATALOGUE)
def test_complex_parameters_are_not_trained(name: str) -> None:
    model = Beside(torch.ones(3, 3, dtype=torch.complex64), trained=True)
    with pytest.raises(RecipeError, match="the parameter beside is torch.complex64"):
        step_of(model, name)


@pytest.mark.parametrize("name", ["fp32", "bf16-mixed", "fp16-mixed", "mxfp8", "bf16-sr"])
def test_sparse_gradients_are_refused(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 32, sparse=True), nn.Linear(32, 16), nn.Linear(16, 50))
    before = [p.detach().clone() for p in model.parameters()]
    step = step_of(model, name)
    stored = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(
        RecipeError, match=r"gradient of 0.weight is torch.sparse_coo.*sparse=False"
    ):
        step(lambda m: m(torch.tensor([1, 2, 3])).float().square().mean())
    assert all(map(torch.equal, model.parameters(), stored if name == "bf16-sr" else before))


@pytest.mark.parametrize("name", ["mxfp8", "fp8-delayed", "nvfp4", "bf16-kahan"])
def test_requires_grad_may_be_toggled(name: str) -> None:
    """A frozen weight is multiplied in its format, gets no gradient and goes on later."""
    chosen = replace(recipe(name), name="test", kept=Kept(head=False))
    model = net()
    step, weight = step_of(model, chosen), model.get_parameter("0.weight")
    counts = []
    for trained in (True, False, True):
        before = weight.detach().clone()
        weight.requires_grad_(trained)
        result = step(loss_of)
        assert torch.equal(weight, before) != trained
        assert result.converted is not None
        kinds = ("forward", "weight_gradient")
        counts.append([result.converted.converted["0.weight", kind] for kind in kinds])
    assert counts == ([[0, 0]] * 3 if name == "bf16-kahan" else [[1, 1], [1, 0], [1, 1]])


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-38, 1e-30])
def test_small_and_zero_amax_is_never_nan(name: str, size: float) -> None:
    """Of activations, weights and gradients."""
    model = net()
    with torch.no_grad():
        model.get_parameter("0.weight").mul_(size)
    with compute(recipe(name), model, "emulated"):
        y = model(X * size)
        loss = (y.float() * size).sum()
    loss.backward()
    assert y.isfinite().all()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() <= 100 * size


@pytest.mark.parametrize("name", [name for name in LOW if name != "tf32"])  # a plain cast
def test_powers_of_two_down_to_the_smallest_normal_change_no_bit(name: str) -> None:
    """An operand's own scale follows it: what is tiny as a whole loses nothing."""
    chosen = replace(recipe(name), name="test", kept=Kept(head=False))
    results = []
    for factor in (1.0, 2.0**-60):
        torch.manual_seed(0)
        layer = nn.Linear(64, 16, bias=False)
        with torch.no_grad(), compute(chosen, layer, "emulated"):
            results.append(layer(torch.randn(8, 64) * factor).float() / factor)
    assert torch.equal(*results)


@pytest.mark.parametrize("name", LOW)
def test_nan_in_is_nan_out_in_its_row(name: str) -> None:
    """In no format is it flushed to a number; where a scale spans the tensor, all of it shows."""
    torch.manual_seed(0)
    chosen = replace(recipe(name), name="test", kept=Kept(head=False))
    layer, x = nn.Linear(64, 16), torch.randn(8, 64)
    x[2, 5] = math.nan
    model = step_of(layer, chosen)
    with torch.no_grad(), compute(chosen, layer, "emulated"):
        assert layer(x)[2].isnan().all()
    result = model(lambda m: m(x).float().square().mean())
    assert math.isnan(result.loss)
    assert result.num_nonfinite > 0


def test_recipes_do_not_nest() -> None:
    model = net()
    for outer in ("mxfp8", "fp16-mixed"):
        for inner in ("mxfp8", "fp16-mixed", "fp32"):
            with (
                compute(recipe(outer), model, "emulated"),
                pytest.raises(RecipeError, match="recipes do not nest"),
                compute(recipe(inner), model, "emulated"),
            ):
                pass
            with compute(recipe(outer), model, "emulated") as report:  # nothing was left behind
                model(X)
            assert report is not None


def test_a_recipe_that_converts_nothing_is_refused() -> None:
    layer, norm = nn.Linear(33, 8), nn.LayerNorm(33)
    with pytest.raises(RecipeError, match=r"mxfp8 converted nothing.*\(weight: the head\)"):
        step_of(layer, "mxfp8")(loss_of)
    with pytest.raises(RecipeError, match="this model multiplies with no weight"):
        step_of(norm, "nvfp4")(loss_of)
    before = layer.weight.detach().clone()
    lenient = TrainStep(
        layer, torch.optim.SGD(layer.parameters()), "mxfp8", backend="emulated", must_convert=False
    )
    result = lenient(loss_of)
    assert result.converted is not None
    assert result.converted.kept == {"weight": "the head"}
    assert not torch.equal(layer.weight, before)


def test_blocks_that_do_not_divide_are_said() -> None:
    chosen = replace(recipe("mxfp8"), name="test", kept=Kept(head=False))
    model = nn.Sequential(nn.Linear(64, 688), nn.Linear(688, 32))
    x = torch.randn(64, 64, requires_grad=True)
    with compute(chosen, model, "emulated") as report:
        loss = model(x).float().square().mean()
    loss.backward()
    assert report is not None
    assert report.converted.total() == 6
    # 688 = 21 · 32 + 16 is contracted twice, by one product of each layer.
    assert report.padded == {("0.weight", "input_gradient"): 1, ("1.weight", "forward"): 1}
    with compute(recipe("fp8-current"), model, "emulated") as whole:
        model(x)
    assert whole is not None
    assert not whole.padded


def test_padding_with_zeros_is_the_same_product() -> None:
    chosen = replace(recipe("mxfp4"), name="test", kept=Kept(head=False))
    torch.manual_seed(0)
    short, long = nn.Linear(40, 8, bias=False), nn.Linear(64, 8, bias=False)
    x = torch.randn(4, 40)
    with torch.no_grad():
        long.weight.zero_()[:, :40] = short.weight
        with compute(chosen, short, "emulated"):
            one = short(x)
        with compute(chosen, long, "emulated"):
            other = long(nn.functional.pad(x, (0, 24)))
    assert torch.equal(one, other)
