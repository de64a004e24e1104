"""Recipes against fp64 on one gradient: the numbers, the recipes, the words, bad input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import floatscope as fs
from floatscope.errors import RecipeError, StudyError
from floatscope.lab.compare import run
from floatscope.lab.compare.difference import differences
from floatscope.lab.compare.records import Arm, Difference, StateComparison
from floatscope.lab.compare.run import RECIPES, checked
from floatscope.lab.model import make_gpt
from floatscope.lab.run.train import batch_loss
from floatscope.recipes import CATALOGUE, Recipe, recipe
from floatscope.recipes.formats_of import Operand, Operands, Stored
from floatscope.recipes.scalings import StaticScaling
from floatscope.rounding import round_to
from tests import tiny

LossOf = Callable[[nn.Module], Tensor]


def mlp() -> tuple[nn.Module, LossOf]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
    model.append(nn.Linear(64, 8))
    x, y = torch.randn(32, 16), torch.randn(32, 8)
    return model, lambda m: F.mse_loss(m(x), y)


def gpt(seed: int = 1) -> tuple[nn.Module, LossOf]:
    batch = tiny.batch(seed=seed)
    return make_gpt(tiny.MODEL, seed=seed), lambda model: batch_loss(model, batch)


def compared(given: tuple[nn.Module, Any], *recipes: Recipe | str, **how: Any) -> StateComparison:
    return fs.compare(*given, recipes, **{"backend": "emulated", **how})


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def exact(model: nn.Module, loss_of: LossOf) -> dict[str, Tensor]:
    """For models whose batch is token ids."""
    model.double()
    loss_of(model).backward()
    found = gradients(model)
    model.float()
    return found


def said(found: StateComparison) -> str:
    return " ".join(found.answers)


# The numbers


def test_differences_are_what_they_say() -> None:
    reference = {
        "a": torch.tensor([1.0, -2.0, 0.0, 4.0, 1e-300], dtype=torch.float64),
        "b": torch.tensor([3.0]).double(),
        "c": torch.zeros(2).double(),
    }
    given = {"a": torch.tensor([-1.0, -2.0, 0.5, 0.0, 0.0]), "c": torch.tensor([0.0, 1.0])}
    whole, (a, b, c) = differences(given, reference)
    assert (a.elements, a.nonzero, a.sign_flips, a.zeros, a.nonfinite) == (5, 4, 1, 2, 0)
    assert a.error == pytest.approx(math.sqrt((4 + 0.25 + 16) / 21), rel=1e-14)
    assert a.cosine == pytest.approx((-1 + 4) / math.sqrt(5.25 * 21), rel=1e-14)
    assert (b.zeros, b.error) == (1, 1.0)  # a gradient that is absent is zero
    assert math.isnan(b.cosine)
    assert (c.nonzero, c.zeros, c.sign_flips) == (0, 0, 0)
    assert math.isnan(c.error)
    assert (whole.elements, whole.nonzero, whole.zeros) == (8, 5, 3)
    assert whole.error == pytest.approx(math.sqrt((20.25 + 9 + 1) / 30), rel=1e-14)
    assert whole.cosine == pytest.approx(3 / math.sqrt(6.25 * 30), rel=1e-14)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_has_no_error(value: float) -> None:
    reference = {"a": torch.ones(4).double(), "b": torch.ones(2).double()}
    given = {"a": torch.tensor([1.0, value, 1.0, 1.0]), "b": torch.ones(2)}
    whole, (a, b) = differences(given, reference)
    assert (a.nonfinite, b.nonfinite, whole.nonfinite) == (1, 0, 1)
    assert math.isnan(a.error)
    assert math.isnan(whole.cosine)
    assert (b.error, b.cosine) == (0.0, pytest.approx(1.0, abs=1e-15))


@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16-mixed", "fp16-mixed", "mxfp8", "int8"])
def test_an_arm_is_the_gradient_of_its_recipe(name: str) -> None:
    model, loss_of = gpt()
    arm = compared((model, loss_of), name).arm(name)
    with fs.compute(recipe(name), model, "emulated"):
        loss = loss_of(model)
    (loss * arm.loss_scale).backward()
    given = {n: g / arm.loss_scale for n, g in gradients(model).items()}
    assert (arm.whole, arm.layers) == differences(given, exact(model, loss_of))
    assert arm.loss == loss.item()
    assert arm.loss_scale == (65536 if name == "fp16-mixed" else 1)
    assert arm.arithmetic == recipe(name).to_dict()
    assert [row.name for row in arm.layers] == [n for n, _ in model.named_parameters()]


def test_fp32_is_the_floor_and_the_order_is_by_error() -> None:
    found = compared(gpt(), "mxfp4", "bf16-mixed", "mxfp8", "fp32")
    assert [arm.recipe for arm in found.arms] == ["fp32", "bf16-mixed", "mxfp8", "mxfp4"]
    assert 1e-9 < found.arms[0].whole.error < 1e-6
    errors = [arm.whole.error for arm in found.arms]
    assert errors == sorted(errors)
    assert [arm.is_fp32 for arm in found.arms] == [True, False, False, False]
    assert "fp32 itself is off by" in said(found)
    assert "cannot say" in found.answers[0]


def test_the_same_seed_gives_the_same_bits() -> None:
    first, again, other = (compared(gpt(), "mxfp4", seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.arm("fp32") == other.arm("fp32")
    assert first.arm("mxfp4").whole != other.arm("mxfp4").whole
    assert "this is one draw: mxfp4." in said(first)


def test_every_recipe_of_the_catalogue_can_be_compared() -> None:
    found = compared(gpt(), *CATALOGUE)
    assert {arm.recipe for arm in found.arms} == set(CATALOGUE)
    assert not found.refused
    assert set(RECIPES) < set(CATALOGUE)
    for arm in found.arms:
        assert arm.whole.nonfinite == 0, arm.recipe
        assert 0 < arm.whole.error < 0.2, arm.recipe
        assert (arm.converted is None) == (recipe(arm.recipe).operands is None)
        assert arm.converted is None or arm.converted >= 14
    assert "fp8-delayed: in a first step there is no history" in said(found)


# What recipes store


def test_stored_weights_are_compared_at_the_weights_as_stored() -> None:
    model, loss_of = gpt()
    found = compared((model, loss_of), "bf16-mixed", "bf16-master", "bf16-pure", "fp16-O2")
    own = exact(model, loss_of)
    rounded, _ = gpt()
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(round_to(parameter, "bf16"))
    stored = exact(rounded, loss_of)
    with fs.compute(recipe("bf16-master"), rounded, "emulated"):
        loss_of(rounded).backward()
    given = gradients(rounded)
    assert found.arm("bf16-master").whole == differences(given, stored)[0]
    bf16 = {name: round_to(g, "bf16") for name, g in given.items()}
    assert found.arm("bf16-pure").whole == differences(bf16, stored)[0]
    moved = differences(stored, own)[0]
    assert {s.weights: (s.error, s.cosine) for s in found.stored}["bf16"] == (
        moved.error,
        moved.cosine,
    )
    assert {arm.recipe: arm.weights for arm in found.arms} == {
        "fp32": "fp32", "bf16-mixed": "fp32", "bf16-master": "bf16", "bf16-pure": "bf16",
        "fp16-O2": "fp16",
    }  # fmt: skip
    assert "bf16-master, bf16-pure: compared at weights rounded to bf16, as stored" in said(found)


def test_a_master_in_fewer_bits_rounds_twice() -> None:
    twice = replace(
        recipe("fp32"), name="twice", stored=Stored(weights="bf16", master="fp16"), products="fp32"
    )
    found = compared(gpt(), twice)
    assert found.arm("twice").weights == "fp16, bf16"
    assert found.arm("twice").whole.error < 1e-6


# Loss scales


def steep(factor: float) -> tuple[nn.Module, LossOf]:
    model, loss_of = mlp()
    return model, lambda m: loss_of(m) * factor


def test_a_scale_that_overflows_is_halved_as_in_training() -> None:
    found = compared(steep(2.0**8), "fp16-mixed", "fp16-mixed-unscaled")
    arm = found.arm("fp16-mixed")
    assert arm.skipped > 0
    assert arm.loss_scale == 65536 / 2**arm.skipped
    assert arm.whole.nonfinite == 0
    assert arm.whole.error < 0.01
    assert f"skip {arm.skipped} steps, and this is the gradient at" in said(found)
    model, loss_of = steep(2.0**8)
    with fs.compute(recipe("fp16-mixed"), model, "emulated"):
        loss = loss_of(model)
    (loss * arm.loss_scale * 2).backward()
    assert not all(bool(g.isfinite().all()) for g in gradients(model).values())


def test_a_scale_that_is_given_is_kept() -> None:
    found = compared(steep(2.0**8), "fp16-mixed", scale=65536.0)
    arm = found.arm("fp16-mixed")
    assert (arm.skipped, arm.loss_scale) == (0, 65536)
    assert arm.whole.nonfinite > 0
    assert math.isnan(arm.whole.error)
    assert "are infinite or NaN at a loss scale of 65536" in said(found)
    small = compared(mlp(), "fp16-mixed", scale=0.25).arm("fp16-mixed")
    assert small.loss_scale == 0.25


def test_an_overflow_in_the_forward_pass_is_not_tried_again() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), torch.full((4, 8), 1e6)
    found = compared((model, lambda m: m(x).mean()), "fp16-mixed")
    arm = found.arm("fp16-mixed")
    assert arm.skipped == 0
    assert not math.isfinite(arm.loss)
    assert arm.whole.nonfinite > 0
    assert found.arms[-1] is arm


def test_small_gradients_become_zero_without_a_scale() -> None:
    found = compared(steep(2.0**-20), "fp16-mixed", "fp16-mixed-unscaled")
    assert found.arm("fp16-mixed").whole.zeros == 0
    assert found.arm("fp16-mixed-unscaled").whole.zeros > 100


# Which parameters


class Parts(nn.Module):
    """A frozen layer, one that is never used, and a bias that a normalization takes away."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.unused, self.frozen = nn.Linear(3, 3), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.second(self.norm(self.first(x)).relu()))


def parts() -> tuple[nn.Module, LossOf]:
    torch.manual_seed(0)
    model, x = Parts(), torch.randn(32, 8)
    return model, lambda m: m(x).square().mean()


def test_what_has_no_gradient_is_named_and_what_is_frozen_is_not() -> None:
    found = compared(parts(), "mxfp8")
    assert found.without_gradient == ("unused.weight", "unused.bias")
    assert "Without a gradient: unused.weight, unused.bias." in said(found)
    names = {row.name for row in found.arms[0].layers}
    assert names == {
        f"{layer}.{kind}" for layer in ("first", "norm", "second") for kind in ("weight", "bias")
    }


def test_a_gradient_that_is_rounding_noise_is_not_called_the_worst() -> None:
    found = compared(parts(), "mxfp8")
    assert [row.name for row in found.noise()] == ["first.bias"]
    assert "first.bias" in said(found)
    arm = found.arm("mxfp8")
    by_error = max(arm.layers, key=lambda row: row.error)
    assert by_error.name == "first.bias"
    ranked = found.worst(arm, None)
    assert len(ranked) == 5
    assert [r.error for r in ranked] == sorted((r.error for r in ranked), reverse=True)
    assert found.worst(arm) == ranked[:1]


def test_tied_weights_have_one_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 8), nn.Linear(8, 32, bias=False))
    model[2].weight = model[0].weight
    ids = torch.randint(0, 32, (4, 12))
    given = model, lambda m: F.cross_entropy(m(ids).flatten(0, 1), ids.flatten())
    found = compared(given, "mxfp8", "bf16-pure")
    assert [row.name for row in found.arms[0].layers] == ["0.weight", "1.weight", "1.bias"]
    assert found.arms[0].whole.error < 1e-6
    assert model[2].weight is model[0].weight


# What is not converted, and what cannot be


def test_a_recipe_that_converts_nothing_says_so() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 4), torch.randn(16, 8)
    found = compared((model, lambda m: m(x).square().mean()), "mxfp8", "tf32")
    assert found.arm("mxfp8").converted == 0
    assert "mxfp8: no product of a weight was converted (weight: the head)." in said(found)
    assert found.arm("tf32").converted == 2


def test_a_gradient_that_is_that_of_fp32_is_called_so() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 4), torch.randn(16, 8)

    def loss_of(m: nn.Module) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return m(x).square().mean()

    found = compared((model, loss_of), "bf16-mixed")
    assert found.arm("bf16-mixed").is_fp32
    assert "bf16-mixed: the gradient is that of fp32 to the bit" in said(found)


def test_a_recipe_that_is_refused_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = run.training_step

    def refusing(model: nn.Module, chosen: Recipe, *rest: Any) -> Any:
        if chosen.name in ("mxfp8", "int8"):
            raise RecipeError("there is an operation that it cannot compute.")
        return made(model, chosen, *rest)

    monkeypatch.setattr(run, "training_step", refusing)
    found = compared(mlp(), "mxfp8", "bf16-mixed")
    assert found.refused == {"mxfp8": "there is an operation that it cannot compute."}
    assert [arm.recipe for arm in found.arms] == ["fp32", "bf16-mixed"]
    assert "mxfp8 was refused: there is an operation" in said(found)
    with pytest.raises(RecipeError, match="there is an operation"):
        compared(mlp(), "mxfp8", "int8")


def test_a_recipe_of_ones_own() -> None:
    floor = Operand(format="mxfp8-e4m3", rule="floor")
    mine = replace(
        recipe("mxfp8"),
        name="mine",
        operands=Operands(activation=floor, weight=floor, gradient=floor),
    )
    found = compared(mlp(), "mxfp8", mine)
    assert found.arm("mine").arithmetic["operands"]["weight"]["rule"] == "floor"
    assert found.arm("mine").whole != found.arm("mxfp8").whole
    with pytest.raises(RecipeError, match="two different recipes are called mxfp8"):
        compared(mlp(), "mxfp8", replace(mine, name="mxfp8"))
    assert [r.name for r in checked(["mxfp8", "mxfp8", "fp32"])] == ["fp32", "mxfp8"]


def test_a_recipe_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "mxfp8"\noperands = {gradient = "mxfp8-e5m2"}\n')
    found = compared(mlp(), str(path), "mxfp8")
    assert found.arm("mine").whole.error > found.arm("mxfp8").whole.error


def test_a_static_scale_is_not_tried_again() -> None:
    fixed = replace(recipe("fp16-mixed"), name="fixed", loss_scaling=StaticScaling(scale=65536.0))
    arm = compared(steep(2.0**8), fixed).arm("fixed")
    assert (arm.skipped, arm.loss_scale) == (0, 65536)
    assert arm.whole.nonfinite > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipes": ["mxfp9"]}, "unknown recipe 'mxfp9'.*Did you mean"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
        ({"scale": 0.0}, "scale must be a positive number, not 0.0"),
        ({"scale": math.nan}, "scale must be a positive number, not nan"),
        ({"recipes": ["mine.toml"]}, "there is no recipe file mine.toml"),
        ({"scale": 8.0, "recipes": ["bf16-mixed"]}, "none of fp32, bf16-mixed scales its loss"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        fs.compare(*mlp(), **options)


def sparse() -> tuple[nn.Module, LossOf]:
    model = nn.Embedding(8, 4, sparse=True)
    return model, lambda m: m(torch.tensor([1, 2])).square().mean()


def moving() -> tuple[nn.Module, LossOf]:
    torch.manual_seed(0)
    steps, model = itertools.count(1), nn.Linear(8, 4)
    return model, lambda m: m(torch.full((4, 8), float(next(steps)))).square().mean()


def linear(loss_of: Callable[[nn.Module], Any]) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return nn.Linear(8, 4), loss_of


ROWS = torch.ones(2, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: (nn.ReLU(), ROWS), "no parameter requires one"),
        (lambda: (nn.Linear(8, 4).bfloat16(), ROWS), "weight is torch.bfloat16.*model.float"),
        (lambda: (nn.Linear(8, 4, device="meta"), ROWS), "weight is on the meta device"),
        (sparse, "the gradient of weight is torch.sparse_coo"),
        (moving, "the loss is another one each time"),
        (lambda: linear(lambda m: m(ROWS)), r"a tensor of shape \(2, 4\)"),
        (lambda: linear(lambda m: None), "NoneType was returned"),
        (lambda: linear(lambda m: torch.ones(())), "does not depend on any parameter"),
        (lambda: linear(lambda m: m(ROWS).sum() * math.nan), "infinite or NaN in fp64 already"),
        (lambda: linear(lambda m: m(ROWS).sum() * 0), "zero in fp64 already"),
        (lambda: linear(lambda m: m(ROWS[:, :3]).sum()), "the pass in fp64 raised RuntimeError"),
    ],
)
def test_what_says_nothing_is_refused(
    given: Callable[[], tuple[nn.Module, Any]], message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        compared(given(), "bf16-mixed")


def test_batches_of_every_kind() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"loss": self.layer(x).square().mean()}

    x = torch.randn(8, 4)
    for given in ({"x": x}, (x,), [x], x):
        assert compared((Own(), given), "bf16-mixed").arms[0].whole.elements == 5


def row(name: str, error: float, nonfinite: int = 0) -> Difference:
    return Difference(
        name=name, elements=10, nonzero=10, cosine=1.0, error=error, sign_flips=0, zeros=0,
        nonfinite=nonfinite,
    )  # fmt: skip


def test_what_is_not_finite_is_worst() -> None:
    floor = [row(name, 1e-7) for name in "abc"]
    broken = [row("a", 0.5), row("b", math.nan, 1), row("c", math.nan, 2)]
    empty = compared(mlp())
    arms = tuple(
        replace(empty.arms[0], recipe=name, layers=tuple(rows))
        for name, rows in (("fp32", floor), ("x", broken))
    )
    state = replace(empty, arms=arms)
    assert isinstance(arms[1], Arm)
    assert [r.name for r in state.worst(arms[1], None)] == ["c", "b", "a"]
