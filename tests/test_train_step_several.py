"""Several optimizers and several micro-batches in one step, and what storage leaves in fp32."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from floatscope.errors import RecipeError
from floatscope.recipes import Recipe, recipe
from floatscope.recipes.formats_of import Kept, Operand, Operands, Stored
from floatscope.recipes.storage import Storage
from floatscope.recipes.train_step import TrainStep
from floatscope.rounding import round_to

X, Y = torch.randn(12, 32, generator=torch.Generator().manual_seed(0)), torch.ones(12, 8)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))


def of(model: nn.Module, name: str) -> nn.Parameter:
    return dict(model.named_parameters())[name]


def loss_on(first: int, last: int) -> Callable[[nn.Module], Tensor]:
    return lambda m: nn.functional.mse_loss(m(X[first:last]).float(), Y[first:last])


def two(model: nn.Module) -> list[Optimizer]:
    """One for matrices, one for vectors."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [AdamW(matrices, lr=1e-2), SGD(vectors, lr=1e-1, momentum=0.9)]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def same_everywhere(stored: Stored, **more: object) -> Recipe:
    return replace(recipe("fp32"), name="test", stored=stored, **more)  # type: ignore[arg-type]


# Several optimizers


def test_two_optimizers_are_plain_pytorch() -> None:
    model, plain = net(), net()
    step = TrainStep(model, two(model), "fp32", clip_norm=0.1)
    optimizers = two(plain)
    for _ in range(3):
        result = step(loss_on(0, 12))
        plain.zero_grad()
        loss = loss_on(0, 12)(plain)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        for optimizer in optimizers:
            optimizer.step()
        assert (result.loss, result.grad_norm) == (loss.item(), norm.item())
    assert torch.equal(weights(model), weights(plain))


def test_an_overflow_of_one_skips_all() -> None:
    model = net()
    step = TrainStep(model, two(model), "fp16-mixed", backend="emulated")
    before = weights(model)
    for bad in (of(model, "0.weight"), of(model, "3.bias")):  # of either optimizer

        def observed(m: nn.Module, bad: Tensor = bad) -> Tensor:
            return loss_on(0, 12)(m) + (bad * torch.inf).sum()

        scale = step.loss_scale
        assert step(observed).skipped
        assert step.loss_scale == scale / 2
    assert torch.equal(weights(model), before)
    assert not len(step.optimizer.state)
    assert not step(loss_on(0, 12)).skipped
    assert len(step.optimizer.state) == 6


@pytest.mark.parametrize("name", ["bf16-pure", "bf16-sr", "bf16-kahan", "bf16-master", "fp16-O2"])
def test_storage_does_not_mind_how_many_optimizers_there_are(name: str) -> None:
    def groups(model: nn.Module) -> list[Optimizer]:
        halves = [model[0].parameters(), [*model[1].parameters(), *model[3].parameters()]]  # type: ignore[index]
        return [AdamW(half, lr=1e-2) for half in halves]

    one, several = net(), net()
    single = TrainStep(one, AdamW(one.parameters(), lr=1e-2), name, backend="emulated", seed=3)
    double = TrainStep(several, groups(several), name, backend="emulated", seed=3)
    for _ in range(4):
        found, expected = double(loss_on(0, 12)), single(loss_on(0, 12))
        assert found.stored == expected.stored
        assert found.stored is not None
        assert found.stored.of > 2500
    assert torch.equal(weights(several), weights(one))


def test_what_cannot_step_together_is_refused() -> None:
    model = net()
    shared = [SGD(model.parameters()), AdamW(model[3].parameters())]
    lbfgs = [SGD(model[0].parameters()), torch.optim.LBFGS(model[3].parameters())]
    for given, message in (
        (shared, r"two optimizers hold the same parameter, of shape \(8, 64\)"),
        (lbfgs, "LBFGS needs a closure"),
        ([], "there is no optimizer"),
        ([shared[0], None], "NoneType is no torch.optim optimizer"),
        (7, "int is no torch.optim optimizer"),
    ):
        with pytest.raises(RecipeError, match=message):
            TrainStep(model, given, "bf16-sr")  # type: ignore[arg-type]


# Micro-batches


def test_micro_batches_are_plain_pytorch() -> None:
    model, plain = net(), net()
    step = TrainStep(model, AdamW(model.parameters(), lr=1e-2), "fp32", clip_norm=0.1)
    optimizer = AdamW(plain.parameters(), lr=1e-2)
    parts = [loss_on(0, 5), loss_on(5, 9), loss_on(9, 12)]
    for _ in range(3):
        result = step(parts)
        plain.zero_grad()
        losses = [part(plain) for part in parts]
        for loss in losses:
            (loss / 3).backward()
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        optimizer.step()
        assert result.grad_norm == norm.item()
        assert result.loss == pytest.approx(sum(loss.item() for loss in losses) / 3)
    assert torch.equal(weights(model), weights(plain))


def test_a_micro_batch_twice_is_the_gradient_once() -> None:
    """Halves add up to the whole, exactly, also scaled and in 16 bits."""
    for name in ("fp16-mixed", "mxfp8", "fp8-current"):
        seen: list[list[Tensor]] = []

        def keep(m: nn.Module, seen: list[list[Tensor]] = seen) -> None:
            seen.append([p.grad.clone() for p in m.parameters() if p.grad is not None])

        for parts in (loss_on(0, 12), [loss_on(0, 12)] * 2, [loss_on(0, 12)] * 4):
            model = net()
            step = TrainStep(model, SGD(model.parameters()), name, backend="emulated")
            result = step(parts, keep)
            assert not result.skipped
        assert all(map(torch.equal, seen[0], seen[1])), name
        assert all(map(torch.equal, seen[0], seen[2])), name


@pytest.mark.parametrize("form", ["bf16", "fp16", "e5m2"])
def test_gradients_of_micro_batches_add_up_in_their_format(form: str) -> None:
    model, plain, seen = net(), net(), []
    stored = same_everywhere(Stored(weights="bf16", gradients=form))
    step = TrainStep(model, SGD(model.parameters()), stored)
    plain.load_state_dict(model.state_dict())  # weights as they are stored
    parts = [loss_on(0, 4), loss_on(4, 8), loss_on(8, 10), loss_on(10, 12)]
    step(parts, lambda m: seen.extend(p.grad.clone() for p in m.parameters()))  # type: ignore[union-attr]
    total: list[Tensor] = []
    for part in parts:
        plain.zero_grad()
        (part(plain) / 4).backward()
        new = [p.grad.clone() for p in plain.parameters() if p.grad is not None]
        total = [round_to(a + b, form) for a, b in zip(total, new, strict=True)] if total else [
            round_to(g, form) for g in new
        ]  # fmt: skip
    assert all(map(torch.equal, seen, total))


def test_what_was_converted_counts_every_micro_batch() -> None:
    model = net()
    step = TrainStep(model, SGD(model.parameters()), "mxfp8", backend="emulated")
    once, thrice = step(loss_on(0, 12)).converted, step([loss_on(0, 4)] * 3).converted
    assert once is not None
    assert thrice is not None
    assert once.converted == {("0.weight", "forward"): 1, ("0.weight", "weight_gradient"): 1}
    assert thrice.converted == {key: 3 * n for key, n in once.converted.items()}
    assert thrice.kept == once.kept == {"3.weight": "the head"}
    assert thrice.emulated == {key: 3 * n for key, n in once.emulated.items()}


def test_micro_batches_draw_other_random_bits() -> None:
    """Or their rounding errors would add up instead of cancelling."""
    low = Operand(format="mxfp4", rule="rceil", rounding="stochastic")  # which saturates nothing
    operands = Operands(activation=Operand(format="fp32"), weight=Operand(format="fp32"),
                        gradient=low)  # fmt: skip
    noisy = replace(recipe("fp32"), name="test", operands=operands, kept=Kept(head=False))
    found = {}
    for num in (1, 64):
        model, seen = net(), []
        step = TrainStep(model, SGD(model.parameters()), noisy)
        step([loss_on(0, 12)] * num, lambda m, seen=seen: seen.append(of(m, "3.weight").grad))
        found[num] = seen[0]
    exact = net()
    loss_on(0, 12)(exact).backward()
    gradient = of(exact, "3.weight").grad
    assert isinstance(gradient, Tensor)
    one, many = ((found[num] - gradient).norm() for num in (1, 64))
    assert many < one / 4  # an eighth, if they are independent


def test_delayed_scales_see_all_micro_batches_of_a_step() -> None:
    model = net()
    step = TrainStep(model, SGD(model.parameters(), lr=0.0), "fp8-delayed", backend="emulated")
    step([lambda m: m(X[:2]).float().sum(), lambda m: m(100 * X[2:4]).float().sum()])
    (largest,) = step.state_dict()["quantization"]["largest"]["0.weight/forward/activation"]
    assert largest == pytest.approx(100 * X[2:4].abs().max().item(), rel=0.01)


@pytest.mark.parametrize("name", ["fp32", "fp16-mixed", "fp8-delayed", "mine"])
def test_resumed_with_both_is_bit_identical(name: str) -> None:
    mine = replace(
        recipe("nvfp4"), name="mine", stored=Stored(weights="bf16", update="stochastic"),
        loss_scaling=recipe("fp16-mixed").loss_scaling, kept=Kept(),
    )  # fmt: skip
    parts = [loss_on(0, 6), loss_on(6, 12)]

    def started() -> tuple[nn.Module, list[Optimizer], TrainStep]:
        model = net()
        optimizers = two(model)
        chosen = mine if name == "mine" else recipe(name)
        return model, optimizers, TrainStep(model, optimizers, chosen, backend="emulated")

    model, optimizers, step = started()
    for _ in range(2):
        step(parts)
    saved = copy.deepcopy(
        (model.state_dict(), [o.state_dict() for o in optimizers], step.state_dict())
    )
    results = [step(parts) for _ in range(2)]
    again, others, second = started()
    again.load_state_dict(saved[0])
    for optimizer, state in zip(others, saved[1], strict=True):
        optimizer.load_state_dict(state)
    second.load_state_dict(saved[2])
    assert [second(parts) for _ in range(2)] == results
    assert torch.equal(weights(again), weights(model))


def test_no_micro_batch_is_refused() -> None:
    model = net()
    with pytest.raises(RecipeError, match="at least one micro-batch"):
        TrainStep(model, SGD(model.parameters()), "fp32")([])


# What stays in fp32


def test_norms_and_named_parameters_stay_in_fp32() -> None:
    stored = Stored(
        weights="bf16", moments=("bf16", "bf16"), gradients="bf16", update="stochastic",
        keep=("3.bias",), keep_norms=True,
    )  # fmt: skip
    model, plain = net(), net()
    step = TrainStep(model, AdamW(model.parameters(), lr=1e-3), same_everywhere(stored))
    assert torch.equal(of(model, "1.weight"), of(plain, "1.weight"))
    assert not torch.equal(of(model, "3.bias"), round_to(of(model, "3.bias").detach(), "bf16"))
    for _ in range(3):
        result = step(loss_on(0, 12))
        assert result.stored is not None
        assert result.stored.of == sum(p.numel() for p in model.parameters())
    for name, parameter in model.named_parameters():
        is_rounded = torch.equal(parameter, round_to(parameter.detach(), "bf16"))
        moment = step.optimizer.state[parameter]["exp_avg"]
        stays = name in ("1.weight", "1.bias", "3.bias")
        assert is_rounded != stays, name
        assert torch.equal(moment, round_to(moment, "bf16")) != stays, name


@pytest.mark.parametrize("update", ["nearest", "kahan", "stochastic", "master"])
def test_a_gain_that_would_stall_moves_if_it_is_kept(update: str) -> None:
    how = {"master": "bf16"} if update == "master" else {"update": update}
    for keep in (False, True):
        model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
        stored = Stored(weights="bf16", keep_norms=keep, **how)  # type: ignore[arg-type]
        storage = Storage(stored, model, SGD(model.parameters(), lr=2.0**-12))
        storage.prepare()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        storage.step()
        if keep:
            assert of(model, "0.weight").tolist() == [1 - 2.0**-12] * 4
            assert not {"0.weight", "0.bias"} & storage.state_dict()["masters"].keys()
            assert not {"0.weight", "0.bias"} & storage.state_dict()["rests"].keys()
        elif update != "stochastic":
            assert of(model, "0.weight").tolist() == [1.0] * 4


def test_frozen_parameters_that_are_kept_are_not_rounded() -> None:
    model = net()
    before = of(model, "0.weight").detach().clone()
    stored = Stored(weights="bf16", keep=("0",))
    Storage(stored, model, SGD(model[3].parameters())).prepare()
    assert torch.equal(of(model, "0.weight"), before)
    assert not torch.equal(of(model, "3.weight"), of(net(), "3.weight"))


def test_patterns_that_name_nothing_are_refused() -> None:
    model = net()
    sgd = SGD(model.parameters())
    mistaken = same_everywhere(Stored(weights="bf16", keep=("blocks.*",)))
    with pytest.raises(RecipeError, match=r"stored.keep has the pattern 'blocks.\*', and no para"):
        TrainStep(model, sgd, mistaken)
    low = replace(recipe("mxfp8"), name="test", kept=Kept(names=("3.weight", "last")))
    with pytest.raises(RecipeError, match="kept.names has the pattern 'last', and no parameter"):
        TrainStep(model, sgd, low)(loss_on(0, 12))


def test_a_tied_weight_is_known_by_either_name() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = of(model, "0.weight")
    low = replace(recipe("mxfp8"), name="test", kept=Kept(names=("1.weight",), head=False))
    with low.compute(model) as report:
        model(X[:, :8])
    assert report is not None
    assert report.kept == {"0.weight": "named"}
    assert not report.converted


def test_a_kept_parameter_of_16_bits_is_refused() -> None:
    model = net().bfloat16()
    kept = Stored(weights="bf16", keep_norms=True)
    with pytest.raises(RecipeError, match="1.weight is torch.bfloat16"):
        Storage(kept, model, SGD(model.parameters()))


def test_a_recipe_computes_as_the_function_does() -> None:
    model = net()
    with recipe("mxfp8").compute(model, "emulated") as report:
        result = model(X)
    assert report is not None
    assert report.converted == {("0.weight", "forward"): 1}
    assert math.isfinite(result.float().sum().item())
