"""The order of a training step, and what loss scaling does in it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from floatscope.errors import RecipeError
from floatscope.lab.model import make_gpt
from floatscope.lab.run.train import batch_loss, make_optimizer
from floatscope.recipes import LossScaling, Recipe, recipe
from floatscope.recipes.loss_scaling import LossScaleCollapse
from floatscope.recipes.train_step import StepResult, TrainStep
from tests import tiny


def fp16(scaling: LossScaling | None) -> Recipe:
    return Recipe(name="test", products="fp16", loss_scaling=scaling, summary="", source="")


def trainer(rec: Recipe, clip: float | None = None) -> TrainStep:
    model = make_gpt(tiny.MODEL, seed=1)
    optimizer = make_optimizer(model, tiny.TRAIN)
    return TrainStep(model, optimizer, rec, clip_norm=clip, backend="emulated")


def one_step(step: TrainStep, factor: float = 1.0) -> tuple[StepResult, Tensor]:
    """A step and the gradient that an observer sees in it."""
    seen: list[Tensor] = []
    data = tiny.batch()

    def observe(model: nn.Module) -> None:
        seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]))  # type: ignore[union-attr]

    return step(lambda model: batch_loss(model, data) * factor, observe), seen[0]


def weights(step: TrainStep) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in step.model.parameters()])


def test_fp32_step_is_plain_pytorch() -> None:
    step, data = trainer(recipe("fp32"), clip=1.0), tiny.batch()
    model = copy.deepcopy(step.model)
    optimizer = make_optimizer(model, tiny.TRAIN)
    for _ in range(3):
        result, _ = one_step(step)
        optimizer.zero_grad()
        loss = batch_loss(model, data)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert result.loss == loss.item()
        assert result.grad_norm == norm.item()
    plain = torch.cat([p.flatten() for p in model.parameters()])
    assert torch.equal(weights(step), plain)


def test_scaled_steps_are_torchs_grad_scaler() -> None:
    step, data = trainer(recipe("fp16-mixed"), clip=1.0), tiny.batch()
    model = copy.deepcopy(step.model)
    optimizer = make_optimizer(model, tiny.TRAIN)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=200)
    from floatscope.recipes.emulation import Emulation

    for _ in range(3):
        one_step(step)
        optimizer.zero_grad()
        with Emulation(torch.float16), torch.autocast("cpu", dtype=torch.float16):
            loss = batch_loss(model, data)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    plain = torch.cat([p.flatten() for p in model.parameters()])
    assert torch.equal(weights(step), plain)
    assert step.loss_scale == scaler.get_scale()


def test_gradients_are_observed_unscaled_and_unclipped() -> None:
    _, reference = one_step(trainer(recipe("fp32"), clip=1e-3))
    result, observed = one_step(trainer(recipe("fp16-mixed"), clip=1e-3))
    assert result.loss_scale == 65536
    assert ((observed - reference).norm() / reference.norm()).item() < 0.01
    assert result.grad_norm == pytest.approx(observed.norm().item(), rel=1e-5)
    assert result.grad_norm > 1e-3


@settings(max_examples=15)
@given(st.integers(min_value=0, max_value=10), st.integers(min_value=0, max_value=2**31))
def test_power_of_two_scales_give_the_same_bits(exponent: int, seed: int) -> None:
    """With nothing subnormal or overflowed, unscaled gradients do not depend on the scale."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(8, 8, generator=generator).sign() * torch.rand(
        8, 8, generator=generator
    ).add(1)
    x = torch.randn(4, 8, generator=generator).sign() * torch.rand(4, 8, generator=generator).add(1)
    gradients = []
    for scale in (1.0, 2.0**exponent):
        layer = nn.Linear(8, 8, bias=False)
        layer.weight.data.copy_(weight)
        step = TrainStep(
            layer, torch.optim.SGD(layer.parameters()), fp16(LossScaling(initial=scale)),
            backend="emulated",
        )  # fmt: skip
        step(lambda m: m(x).float().sum(), lambda m: gradients.append(m.weight.grad.clone()))  # type: ignore[union-attr, operator]
    assert torch.equal(gradients[0], gradients[1])


def test_a_nonfinite_step_is_skipped_and_halves_the_scale() -> None:
    step = trainer(fp16(LossScaling(initial=2.0**40)))
    before = weights(step)
    result, _ = one_step(step)
    assert result.skipped
    assert result.num_nonfinite > 0
    assert not math.isfinite(result.grad_norm)
    assert result.loss_scale == 2.0**40
    assert step.loss_scale == 2.0**39
    assert torch.equal(weights(step), before)
    assert not step.optimizer.state  # no moment was touched


def test_the_scale_doubles_after_its_interval() -> None:
    step = trainer(fp16(LossScaling(initial=16.0, growth_interval=3)))
    scales = [one_step(step)[0].loss_scale for _ in range(7)]
    assert scales == [16, 16, 16, 32, 32, 32, 64]


def test_unscaled_fp16_applies_every_step() -> None:
    step = trainer(recipe("fp16-mixed-unscaled"), clip=1.0)
    result, _ = one_step(step, factor=1e30)
    assert not result.skipped
    assert result.num_nonfinite > 0
    assert result.loss_scale == 1
    assert not result.finite_weights


def test_scaling_stops_long_before_torch_would_write_nan() -> None:
    step = trainer(recipe("fp16-mixed"))
    steps = 0
    with pytest.raises(LossScaleCollapse, match="infinite or NaN at every scale"):
        for _ in range(200):
            one_step(step, factor=math.inf)
            steps += 1
    assert steps == 40  # from 2**16, the 41st halving passes the floor 2**-24
    assert bool(weights(step).isfinite().all())


def test_clipping_bounds_the_update_after_unscaling() -> None:
    layer = nn.Linear(4, 4, bias=False)
    layer.weight.data.zero_()
    sgd = torch.optim.SGD(layer.parameters(), lr=1.0)
    step = TrainStep(layer, sgd, recipe("fp16-mixed"), clip_norm=1.0, backend="emulated")
    x = torch.ones(2, 4)
    result = step(lambda m: m(x).float().sum() * 0.25)
    assert result.grad_norm == pytest.approx(2.0)
    assert layer.weight.norm().item() == pytest.approx(1.0, rel=1e-5)


def test_evaluation_changes_nothing() -> None:
    step, data = trainer(recipe("fp16-mixed")), tiny.batch()
    before = weights(step)
    loss = step.evaluate(lambda model: batch_loss(model, data))
    assert loss == pytest.approx(math.log(tiny.MODEL.vocab_size), rel=0.05)
    assert torch.equal(weights(step), before)
    assert all(p.grad is None for p in step.model.parameters())


def test_state_round_trip() -> None:
    step, other = trainer(fp16(LossScaling(initial=2.0**40))), trainer(fp16(LossScaling()))
    one_step(step)
    other.load_state_dict(step.state_dict())
    assert other.loss_scale == 2.0**39


def test_a_part_of_the_model_is_trained_alone() -> None:
    """Parameters outside the optimizer are neither unscaled nor counted nor clipped."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.randn(6, 8), torch.randn(6, 4)
    results = {}
    for name in ("fp32", "fp16-mixed"):
        model = copy.deepcopy(base)
        sgd = torch.optim.SGD(model[0].parameters(), lr=0.1)
        step = TrainStep(model, sgd, name, clip_norm=1.0, backend="emulated")
        norms = [step(lambda m: nn.functional.mse_loss(m(x), y)).grad_norm for _ in range(4)]
        moved = (model[0].weight - base[0].weight).norm().item()
        assert torch.equal(model[2].weight, base[2].weight)
        results[name] = [*norms, moved]
    assert results["fp16-mixed"] == pytest.approx(results["fp32"], rel=0.02)


@pytest.mark.parametrize("clip", [-1.0, 0.0, math.nan, "1"])
def test_impossible_clipping_is_refused(clip: float) -> None:
    with pytest.raises(RecipeError, match="clip_norm must be a positive number"):
        trainer(recipe("fp32"), clip=clip)


def test_what_cannot_be_trained_is_refused_in_plain_words() -> None:
    layer, other = nn.Linear(4, 4), nn.Linear(4, 4)
    half, frozen = nn.Linear(4, 4).half(), nn.Linear(4, 4).requires_grad_(False)
    meta = nn.Linear(4, 4, device="meta")

    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters())

    for model, optimizer, message in (
        (layer, sgd(other), "holds no parameter of this model"),
        (frozen, sgd(frozen), "nothing to train"),
        (half, sgd(half), r"weight is torch.float16.*model.float\(\)"),
        (meta, sgd(meta), "weight is on the meta device"),
        (layer, torch.optim.LBFGS(layer.parameters()), "LBFGS needs a closure"),
    ):
        with pytest.raises(RecipeError, match=message):
            TrainStep(model, optimizer, "fp16-mixed")
    with pytest.raises(RecipeError, match="unknown recipe 'fp16'"):
        TrainStep(layer, sgd(layer), "fp16")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda m: 1.0, "must be a scalar tensor, not float"),
        (lambda m: m(torch.ones(2, 4)), r"not a tensor of shape \(2, 4\)"),
        (lambda m: m(torch.ones(2, 4)).sum().detach(), "does not depend on any parameter"),
    ],
)
def test_impossible_losses_are_refused(loss: Callable[[nn.Module], Tensor], message: str) -> None:
    layer = nn.Linear(4, 4)
    step = TrainStep(layer, torch.optim.SGD(layer.parameters()), "fp32")
    with pytest.raises(RecipeError, match=message):
        step(loss)


def scaled(products: str, initial: float | None) -> Recipe:
    scaling = None if initial is None else LossScaling(initial=initial)
    return Recipe(name="test", products=products, loss_scaling=scaling, summary="", source="")  # type: ignore[arg-type]


def test_an_overflow_in_unscaling_skips_the_step() -> None:
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(2.0**-30)
    step = TrainStep(layer, torch.optim.SGD(layer.parameters()), scaled("fp32", 2.0**-20))
    x = torch.full((1, 1), 2.0**100)
    result = step(lambda model: model(x).sum() * 2.0**28)
    assert result.skipped
    assert result.num_nonfinite == 1
    assert layer.weight.item() == 2.0**-30
    assert step.loss_scale == 2.0**-21


@pytest.mark.parametrize("initial", [None, 1024.0])
def test_parameters_beside_the_model_start_each_step_without_a_gradient(
    initial: float | None,
) -> None:
    layer, extra = nn.Linear(1, 1, bias=False), nn.Parameter(torch.ones(()))
    layer.weight.data.fill_(1.0)
    optimizer = torch.optim.SGD([*layer.parameters(), extra], lr=0.0)
    step = TrainStep(layer, optimizer, scaled("fp32", initial))
    for _ in range(3):
        step(lambda model: model(torch.ones(1, 1)).sum() * extra)
    assert extra.grad is not None
    assert extra.grad.item() == 1.0


@pytest.mark.parametrize("name", ["fp32", "fp16-mixed"])
def test_a_step_without_a_gradient_to_apply_is_refused(name: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    step = TrainStep(model, torch.optim.SGD(model[1].parameters()), name)
    with pytest.raises(RecipeError, match="no parameter that the optimizer holds got a gradient"):
        step(lambda model: model[0](torch.ones(1, 2)).float().sum())  # type: ignore[index]


def test_a_norm_beyond_fp32_still_clips() -> None:
    layer = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    step = TrainStep(layer, optimizer, "fp32", clip_norm=1.0)
    result = step(lambda model: model(torch.full((1, 2), 1e20)).sum())
    assert result.grad_norm == pytest.approx(math.sqrt(2) * 1e20)
    torch.testing.assert_close(layer.weight.detach(), torch.full((1, 2), -math.sqrt(0.5)))
