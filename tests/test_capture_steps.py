"""Gradients are divided by the scale that was used, and steps are counted as the optimizer does."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler

import floatscope as fs
from floatscope.lab.model import make_gpt
from floatscope.lab.run.train import batch_loss, make_optimizer
from floatscope.recipes import LossScaling, Recipe
from floatscope.spectrum.capture import pending, taking
from floatscope.spectrum.capture.capture import Capture
from floatscope.spectrum.capture.scales import Scale, loss_scale_of
from floatscope.spectrum.measure import Measurement
from tests import tiny
from tests.test_capture import X, found, missing, spectrum


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def true_gradients(model: nn.Module) -> dict[str, fs.Spectrum]:
    """Of an unscaled backward pass through a copy."""
    model = copy.deepcopy(model)
    model.zero_grad()
    model(X).square().sum().backward()
    return {n: spectrum([p.grad]) for n, p in model.named_parameters() if p.grad is not None}


# Scales


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("initial", [2.0**16, 1.0])
def test_gradients_are_unscaled_and_unclipped(
    set_to_none: bool, unscale: bool, initial: float
) -> None:
    model, optimizer = make()
    scaler = GradScaler("cpu", init_scale=initial, growth_interval=2)
    expected, scales = [], []
    with fs.capture(model, optimizer=optimizer, loss_scale=scaler) as seen:
        for _ in range(5):
            with seen.paused():
                expected.append(true_gradients(model))
            optimizer.zero_grad(set_to_none)
            scaler.scale(model(X).square().sum()).backward()
            scales.append(scaler.get_scale())
            if unscale:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            scaler.step(optimizer)
            scaler.update()
    assert [found(seen, "weight_gradient", step) for step in range(5)] == expected
    assert scales == [initial * k for k in (1, 1, 2, 2, 4)]
    outputs = found(seen, "activation_gradient", 4)
    assert outputs["2"] == outputs[""]
    assert not seen.unseen


def test_other_scales_divide_in_fp32_as_the_scaler_does() -> None:
    model, optimizer = make()
    scaler = GradScaler("cpu", init_scale=1000.0)
    scaled: list[Tensor] = []
    with fs.capture(model, optimizer=optimizer, loss_scale=scaler) as seen:
        output = model(X)
        output.register_hook(scaled.append)
        scaler.scale(output.square().sum()).backward()
        scaler.unscale_(optimizer)
        grads = {n: spectrum([p.grad]) for n, p in model.named_parameters() if p.grad is not None}
        scaler.step(optimizer)
        scaler.update()
    assert found(seen, "weight_gradient") == grads
    inverse = float(np.float32(1 / 1000))
    assert found(seen, "activation_gradient")[""] == spectrum([scaled[0] * inverse])


def test_half_gradients_are_divided_in_fp32() -> None:
    """In fp16 most of these would become zero."""
    model = nn.Linear(8, 4, bias=False).half()
    with fs.capture(model, loss_scale=3e5) as seen:
        model(X.half() * 2.0**-12).sum().backward()
    assert model.weight.grad is not None
    divided = model.weight.grad.float() * float(np.float32(1 / 3e5))
    assert seen.total(role="weight_gradient") == spectrum([divided])
    assert not divided.half().any()
    assert divided.all()


@pytest.mark.parametrize(
    "given",
    [
        8,
        8.0,
        lambda: 8,
        lambda: torch.tensor(8.0),
        SimpleNamespace(loss_scale=8.0),
        GradScaler("cpu", init_scale=8.0),
    ],
)
def test_every_kind_of_scale(given: Any) -> None:
    model, _ = make()
    expected = true_gradients(model)
    if isinstance(given, GradScaler):
        given.scale(torch.zeros(()))
    with fs.capture(model, loss_scale=given) as seen:
        (model(X).square().sum() * 8).backward()
    assert found(seen, "weight_gradient") == expected


def test_a_disabled_scaler_is_none() -> None:
    model, optimizer = make()
    scaler = GradScaler("cpu", init_scale=8.0, enabled=False)
    expected = true_gradients(model)
    with fs.capture(model, optimizer=optimizer, loss_scale=scaler) as seen:
        scaler.scale(model(X).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert found(seen, "weight_gradient") == expected
    assert seen.step == 1


@pytest.mark.parametrize("scale", [0.0, -2.0, math.inf, math.nan, 1.1e-40])
def test_unusable_scales_are_named(scale: float) -> None:
    model, _ = make()
    with fs.capture(model, loss_scale=lambda: scale) as seen:
        model(X).sum().backward()
    assert not seen.select(role="weight_gradient")
    reason = f"the loss scale was {scale:g}, by which fp32 gradients cannot be divided"
    assert missing(seen, "weight_gradient")["0.weight"] == reason
    assert missing(seen, "activation_gradient")["0.output"] == reason


def test_a_scale_on_a_device_is_cloned_and_read_later() -> None:
    scaler = GradScaler("cpu", init_scale=8.0)
    reads: list[str] = []

    class OnDevice:
        device = torch.device("cuda")

        def clone(self) -> Tensor:
            reads.append("clone")
            return torch.tensor(8.0)

        def item(self) -> float:
            reads.append("item")
            return 8.0

    loss = loss_scale_of(scaler, None)
    scaler._scale = OnDevice()  # type: ignore[assignment]
    scale = loss.read()
    assert reads == ["clone"]
    gradient = torch.ones(3)
    assert scale.divided(gradient) is gradient
    assert scale.exponent() == 3
    scaler.set_growth_factor(1.5)  # scales will be no powers of two: wait for each
    assert loss_scale_of(scaler, None).read() == Scale(8.0)
    assert reads == ["clone", "item", "item"]
    assert "6, no power of two, which was known too late" in str(
        Scale(torch.tensor(6.0)).exponent()
    )


@pytest.mark.parametrize("limit", [64 << 20, 1])
def test_tallies_that_stay_on_a_device(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """As on a device: tensors that are fetched together, when their step ends or there are many."""

    def keep(measurement: Measurement) -> Measurement:
        return replace(measurement, tally=torch.from_numpy(measurement.tally))

    def run() -> Capture:
        model, optimizer = make()
        with fs.capture(
            model, optimizer=optimizer, loss_scale=lambda: 4.0,
            roles=("weight", "activation", "activation_gradient", "weight_gradient"),
        ) as seen:  # fmt: skip
            for _ in range(2):
                for part in (X[:2], X[2:]):
                    (model(part).square().sum() * 4).backward()
                optimizer.step()
        return seen

    expected = run().rows()
    monkeypatch.setattr(taking, "settled", keep)
    monkeypatch.setattr(pending, "LIMIT", limit)
    assert run().rows() == expected


# Steps


def test_only_every_nth_step_is_measured() -> None:
    model, optimizer = make()
    with fs.capture(model, optimizer=optimizer, every=3, first_step=2) as seen:
        for _ in range(8):
            model(X).sum().backward()
            optimizer.step()
    assert sorted({r.step for r in seen.records}) == [3, 6, 9]
    assert {len(seen.select(step=step)) for step in (3, 6, 9)} == {4 + 4 + 4 + 4 + 4}
    assert seen.step == 10


def overflowing(step: int) -> float:
    """A factor that makes some steps' gradients infinite."""
    return math.inf if step in (1, 2) else 1.0


@pytest.mark.parametrize("says_so", [True, False])
@pytest.mark.parametrize("with_optimizer", [True, False])
def test_withheld_steps_count(says_so: bool, with_optimizer: bool) -> None:
    """By the scaler's own notes, whether or not the end of an iteration is announced."""
    model, optimizer = make()
    scaler = GradScaler("cpu", init_scale=8.0)
    watched = optimizer if with_optimizer else None
    with fs.capture(model, optimizer=watched, loss_scale=scaler) as seen:
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(model(X).square().sum() * overflowing(step)).backward()
            scaler.step(optimizer)
            scaler.update()
            if says_so:
                seen.next_step()
                assert seen.step == step + 1
    assert {r.step for r in seen.records} == {0, 1, 2, 3}
    assert {r.calls for r in seen.records} == {1}
    lost = [seen.total(step=step, role="weight_gradient") for step in range(4)]
    nonfinite = [s.nans + s.positive_infinities + s.negative_infinities for s in lost]
    assert [n > 0 for n in nonfinite] == [False, True, True, False]
    if with_optimizer:
        assert {r.step for r in seen.select(role="update")} == {0, 3}
        (unseen,) = seen.unseen
        assert (unseen.reason, unseen.steps) == (
            "the optimizer did not step, or only in compiled code",
            (1, 2),
        )


@pytest.mark.parametrize("says_so", [True, False])
def test_train_steps_count_and_are_unscaled(says_so: bool) -> None:
    model = make_gpt(tiny.MODEL, seed=1)
    optimizer = make_optimizer(model, tiny.TRAIN)
    scaling = LossScaling(initial=2.0**40, backoff_factor=2.0**-15)
    fp16 = Recipe(name="t", products="fp16", loss_scaling=scaling, summary="", source="")
    step = fs.TrainStep(model, optimizer, fp16, backend="emulated", clip_norm=1e-3)
    data = tiny.batch()
    observed: list[dict[str, fs.Spectrum]] = []

    def observe(model: nn.Module) -> None:
        grads = {n: p.grad for n, p in model.named_parameters()}
        observed.append({n: spectrum([g]) for n, g in grads.items() if g is not None})

    with fs.capture(model, optimizer=optimizer, loss_scale=step) as seen:
        results = []
        for _ in range(4):
            results.append(step(lambda m: batch_loss(m, data), observe))
            if says_so:
                seen.next_step()
    assert [result.skipped for result in results] == [True, True, False, False]
    for number in range(2, 4):  # the others hold infinities, which shift no spectrum
        assert found(seen, "weight_gradient", number) == observed[number]
    infinite = seen.total(step=0, role="weight_gradient")
    assert infinite.positive_infinities + infinite.nans == results[0].num_nonfinite - (
        infinite.negative_infinities
    )
    assert {r.step for r in seen.select(role="update")} == {2, 3}
    assert {r.calls for r in seen.records} == {1}
    assert seen.step == 4


@pytest.mark.parametrize("updates", [1, 2])
def test_other_losses_between_steps_are_no_steps(updates: int) -> None:
    """As in a GAN: the discriminator is also differentiated for the generator's step."""
    model, optimizer = make()
    other = nn.Linear(8, 8)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=8.0)
    with fs.capture(model, optimizer=optimizer, loss_scale=scaler) as seen:
        for step in range(3):
            assert seen.step == step
            optimizer.zero_grad()
            scaler.scale(model(X).square().sum()).backward()
            scaler.step(optimizer)
            if updates == 2:
                scaler.update()
            second.zero_grad()
            scaler.scale(model(other(X)).square().sum()).backward()
            scaler.step(second)
            scaler.update()
    assert seen.step == 4  # the last pass began a fourth
    assert {r.step for r in seen.select(role="update")} == {0, 1, 2}


def test_steps_end_when_told_in_some_iterations_only() -> None:
    """A step that the loop itself skips is announced; the others end by themselves."""
    model, optimizer = make()
    with fs.capture(model, optimizer=optimizer) as seen:
        for step in range(5):
            optimizer.zero_grad()
            model(X).sum().backward()
            if step in (1, 2):
                seen.next_step()
            else:
                optimizer.step()
            assert seen.step == step + 1
    assert {r.step for r in seen.select(role="update")} == {0, 3, 4}


def test_steps_end_when_told() -> None:
    model, optimizer = make()
    with fs.capture(model) as seen:
        for _ in range(3):
            model(X).sum().backward()
            optimizer.step()
            seen.next_step()
        assert seen.step == 3
    assert {r.step for r in seen.records} == {0, 1, 2}
    with fs.capture(model, optimizer=optimizer, loss_scale=4.0) as seen:
        for step in range(4):
            model(X).sum().backward()
            if step % 2:
                optimizer.step()
            seen.next_step()
            assert seen.step == step + 1
    assert {r.step for r in seen.select(role="update")} == {1, 3}


def test_a_pause_leaves_evaluations_out() -> None:
    model, optimizer = make()
    with fs.capture(model, optimizer=optimizer) as seen:
        for step in range(2):
            model(X).sum().backward()
            with seen.paused(), torch.no_grad():
                model(X)
            assert seen.step == step
            with seen.paused():
                optimizer.step()
                model(X).sum().backward()
            seen.next_step()
            assert seen.step == step + 1
    assert {r.calls for r in seen.records} == {1}
    assert not seen.select(role="update")
    assert {r.step for r in seen.records} == {0, 1}


def test_a_gradient_that_a_hook_takes_away_is_named() -> None:
    model, optimizer = make()

    def at_once(parameter: Tensor) -> None:
        parameter.grad = None

    handle = model[0].weight.register_post_accumulate_grad_hook(at_once)  # type: ignore[union-attr]
    with fs.capture(model, optimizer=optimizer) as seen:
        model(X).sum().backward()
        optimizer.step()
    handle.remove()
    assert "a hook had taken its gradient away" in missing(seen, "weight_gradient")["0.weight"]
    assert len(found(seen, "weight_gradient")) == 3


def test_a_backward_pass_that_fails_leaves_nothing_behind() -> None:
    model, optimizer = make()

    def fail(gradient: Tensor) -> None:
        raise ValueError("in the middle")

    with fs.capture(model, optimizer=optimizer) as seen:
        hidden = model[0](X)  # type: ignore[operator]
        handle = hidden.register_hook(fail)
        with pytest.raises(ValueError, match="in the middle"):
            model[2](hidden).sum().backward()  # type: ignore[operator]
        handle.remove()
        model.zero_grad()
        model(X).sum().backward()
        assert isinstance(model[2].weight.grad, Tensor)  # type: ignore[union-attr]
        gradient = model[2].weight.grad.clone()  # type: ignore[union-attr, operator]
        optimizer.step()
    assert found(seen, "weight_gradient")["2.weight"] == spectrum([gradient])
    assert len(found(seen, "weight_gradient")) == 4
