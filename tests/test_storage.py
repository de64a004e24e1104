"""Weights and optimizer states in formats: exactly the stated arithmetic, resumable, or refused."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)

from floatscope.errors import RecipeError
from floatscope.formats import FloatFormat
from floatscope.formats import format as format_called
from floatscope.recipes import movement as movements
from floatscope.recipes.formats_of import Stored
from floatscope.recipes.movement import MODES, WEIGHTS, Movement, StoredUpdate
from floatscope.recipes.storage import Storage
from floatscope.rounding.random_bits import StochasticKey
from floatscope.rounding.reference import round_value
from floatscope.rounding.rules import rules_for
from floatscope.rounding.tensors import round_to

Make = Callable[[Iterable[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.1),
    "foreach": lambda p: AdamW(p, lr=0.01, foreach=True),
    "fused": lambda p: AdamW(p, lr=0.01, fused=True),
    "momentum": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "sgd": lambda p: SGD(p, lr=0.05),
    "amsgrad": lambda p: Adam(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda p: Adagrad(p, lr=0.05, initial_accumulator_value=0.25),
    "adadelta": Adadelta,
    "adamax": lambda p: Adamax(p, lr=0.01),
    "nadam": lambda p: NAdam(p, lr=0.01),
    "radam": lambda p: RAdam(p, lr=0.01),
    "adafactor": lambda p: Adafactor(p, lr=0.01),
}
SMALL = {  # every way to store, with formats of 16 and 8 bits
    "nearest": Stored(weights="bf16", moments=("bf16", "bf16")),
    "fp16": Stored(weights="fp16", moments=("fp16", "fp16")),
    "e4m3fn": Stored(weights="e4m3fn", moments=("e4m3fn", "fp16")),
    "e5m2": Stored(weights="e5m2", moments=("e5m2", "e5m2"), update="stochastic"),
    "stochastic": Stored(weights="bf16", update="stochastic"),
    "kahan": Stored(weights="bf16", update="kahan"),
    "kahan-fp16": Stored(weights="fp16", update="kahan", moments=("bf16", "bf16")),
    "master": Stored(weights="bf16", master="fp32"),
    "fp16-master": Stored(weights="e4m3fn", master="fp16", update="stochastic"),
}


class Weight(nn.Module):
    """One parameter."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(values.clone())


class Net(nn.Module):
    """Two layers with their weights tied, a bias, a scalar and a channels-last kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.two.weight = self.one.weight
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.idle = nn.Parameter(torch.full((3,), 0.1))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def set_gradients(model: nn.Module, step: int) -> None:
    """Gradients that depend on the step and the weights, for all but "idle"."""
    generator = torch.Generator().manual_seed(step)
    for name, p in model.named_parameters():
        if name != "idle":
            noise = torch.randn(p.shape, generator=generator)
            p.grad = (noise + p.detach().float()).to(torch.float32)


def run(
    storage: Storage, first: int = 0, last: int = 6, check: Callable[[], None] | None = None
) -> list[StoredUpdate]:
    updates = []
    for step in range(first, last):
        set_gradients(storage.model, step)
        updates.append(storage.step())
        if check is not None:
            check()
    return updates


def stored(how: Stored, model: nn.Module, make: Make = OPTIMIZERS["adamw"], **more: Any) -> Storage:
    storage = Storage(how, model, make(model.parameters()), **more)
    storage.prepare()
    return storage


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


def float_format(name: str) -> FloatFormat:
    form = format_called(name)
    assert isinstance(form, FloatFormat)
    return form


def exactly(x: Fraction, name: str) -> float:
    """A number, rounded to nearest by the oracle in exact rationals."""
    form = float_format(name)
    return float(round_value(x, form, rules_for(form)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fp32_everywhere_is_plain_pytorch(name: str) -> None:
    model = net()
    plain = copy.deepcopy(model)
    storage = stored(Stored(), model, OPTIMIZERS[name])
    optimizer = OPTIMIZERS[name](plain.parameters())
    for step in range(5):
        set_gradients(model, step)
        set_gradients(plain, step)
        update = storage.step()
        optimizer.step()
        assert update.lost == update.unmoved == 0
        assert update.quality == update.weights_quality == 1.0
    assert_same(bits(model), bits(plain))
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        for state, value in optimizer.state[other].items():
            if isinstance(value, Tensor):
                assert torch.equal(storage.optimizer.state[mine][state], value)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("optimizer", ["adamw", "fused", "momentum", "amsgrad", "adafactor"])
def test_values_are_in_their_formats_after_every_step(name: str, optimizer: str) -> None:
    how = SMALL[name]
    storage = stored(how, net(), OPTIMIZERS[optimizer])
    first, second = how.moments

    def inside(x: Tensor, form: str) -> bool:
        return torch.equal(round_to(x, form), x)

    def check() -> None:
        for parameter in storage.model.parameters():
            assert inside(parameter.detach(), how.weights)
            for state, value in storage.optimizer.state.get(parameter, {}).items():
                if state in ("exp_avg", "momentum_buffer"):
                    assert inside(value, first)
                elif state in ("exp_avg_sq", "max_exp_avg_sq", "row_var", "col_var", "variance"):
                    assert inside(value, second)
        for kind, form in (("masters", how.master), ("rests", how.weights)):
            for value in storage.state_dict()[kind].values():
                assert inside(value, form or "fp32")

    check()
    run(storage, check=check)


def test_weights_are_the_master_rounded_and_the_master_is_plain_pytorch() -> None:
    """With gradients that do not depend on the weights, an fp32 master is the fp32 run."""
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    model, plain = Weight(values), Weight(values)
    storage, optimizer = stored(SMALL["master"], model), OPTIMIZERS["adamw"](plain.parameters())
    for step in range(5):
        gradient = torch.randn(1000, generator=torch.Generator().manual_seed(step))
        model.w.grad, plain.w.grad = gradient, gradient.clone()
        storage.step()
        optimizer.step()
        master = storage.state_dict()["masters"]["w"]
        assert torch.equal(master, plain.w.detach())
        assert torch.equal(model.w.detach(), round_to(master, "bf16"))


@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
def test_nearest_is_the_loop_written_by_hand(optimizer: str) -> None:
    how = Stored(weights="bf16", moments=("bf16", "fp16"))
    values = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    model, plain = Weight(values), Weight(values.bfloat16().float())
    storage = stored(how, model, OPTIMIZERS[optimizer])
    by_hand = OPTIMIZERS[optimizer](plain.parameters())
    for step in range(10):
        set_gradients(model, step)
        set_gradients(plain, step)
        storage.step()
        by_hand.step()
        with torch.no_grad():
            plain.w.copy_(plain.w.bfloat16())
            for state, dtype in (
                ("exp_avg", torch.bfloat16),
                ("momentum_buffer", torch.bfloat16),
                ("exp_avg_sq", torch.float16),
            ):
                if state in by_hand.state[plain.w]:
                    moment = by_hand.state[plain.w][state]
                    moment.copy_(moment.to(dtype))
        assert torch.equal(model.w, plain.w)


def test_stochastic_rounding_is_keyed_by_step_and_path() -> None:
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    model = Weight(values)
    storage = stored(SMALL["stochastic"], model, lambda p: SGD(p, lr=1.0), seed=5, rank=2)
    for step in range(3):
        before = model.w.detach().clone()
        set_gradients(model, step)
        assert model.w.grad is not None
        intended = before - model.w.grad
        storage.step()
        key = StochasticKey(5, rank=2, step=step, module="w", role="weight")
        assert torch.equal(model.w, round_to(intended, "bf16", rounding="stochastic", key=key))


def one_step(how: Stored, values: Tensor, gradient: Tensor, seed: int = 0) -> Tensor:
    model = Weight(values)
    storage = stored(how, model, lambda p: SGD(p, lr=1.0), seed=seed)
    model.w.grad = gradient
    storage.step()
    return model.w.detach()


def test_stochastic_rounding_is_unbiased() -> None:
    """Over keys, an element has mean x and variance u (ulp − u).

    The mean of all errors in units of their deviations is a sum of independent numbers of variance
    1: beyond 4.5 deviations once in 150,000 tests. Each element alone: n = 200 keys and 400
    elements, beyond 5.5 deviations once in 60,000 tests, after the normal law.
    """
    n, size, ulp = 200, 400, 2.0**-7
    offsets = torch.linspace(0.02, 0.98, size) * ulp
    values = torch.ones(size)
    aimed = values + offsets
    exact = (aimed - 1).double()
    total = torch.zeros(size, dtype=torch.float64)
    for seed in range(n):
        total += one_step(SMALL["stochastic"], values, -offsets, seed).double() - 1
    deviation = (exact * (ulp - exact) / n).sqrt()
    z = (total / n - exact) / deviation
    assert abs(z.sum().item()) < 4.5 * math.sqrt(size)
    assert z.abs().max().item() < 5.5


def test_threads_change_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    values, gradient = torch.randn(2, 1_500_000, generator=generator).unbind()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        model = Weight(values)
        storage = stored(SMALL["stochastic"], model, lambda p: SGD(p, lr=0.01))
        model.w.grad = gradient
        results.append((storage.step(), model.w.detach()))
    torch.set_num_threads(1)
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])


FINITE = st.floats(-100, 100, width=32)


@settings(max_examples=100)
@given(
    st.sampled_from(["bf16", "fp16", "e4m3fn", "e5m2"]),
    st.lists(st.tuples(FINITE, st.lists(FINITE, min_size=4, max_size=4)), min_size=1, max_size=9),
)
def test_kahan_is_its_definition_in_exact_rationals(
    form: str, cases: list[tuple[float, list[float]]]
) -> None:
    """t = s + c in fp64, w = nearest(t), c = nearest(t − w); float() of a rational is nearest."""
    model = Weight(torch.tensor([w for w, _ in cases]))
    storage = stored(Stored(weights=form, update="kahan"), model, lambda p: SGD(p, lr=1.0))
    w = [exactly(Fraction(x), form) for x, _ in cases]
    c = [0.0] * len(cases)
    for step in range(4):
        gradient = [g[step] / 16**step for _, g in cases]
        model.w.grad = torch.tensor(gradient)
        storage.step()
        gradient = model.w.grad.tolist()
        for i, g in enumerate(gradient):
            s = float(np.float32(w[i]) - np.float32(g))
            t = Fraction(float(Fraction(s) + Fraction(c[i])))
            w[i] = exactly(t, form)
            if not math.isfinite(w[i]):
                c[i] = 0.0
            else:
                c[i] = exactly(t - Fraction(w[i]), form)
        np.testing.assert_array_equal(model.w.detach().numpy(), w)
        np.testing.assert_array_equal(storage.state_dict()["rests"]["w"].numpy(), c)
        if not all(map(math.isfinite, w)):
            return


@pytest.mark.parametrize(("form", "precision"), [("bf16", 8), ("fp16", 11)])
def test_kahan_misses_the_sum_by_half_an_ulp_of_the_rest(form: str, precision: int) -> None:
    """Each step, |w + c − t| is at most half an ulp of c, and that 2^-(2p+1) of w."""
    generator = torch.Generator().manual_seed(0)
    model = Weight(1 + torch.rand(5000, generator=generator))
    storage = stored(Stored(weights=form, update="kahan"), model, lambda p: SGD(p, lr=1.0))
    w, c = model.w.detach().double(), torch.zeros(5000, dtype=torch.float64)
    for _ in range(30):
        gradient = torch.randn(5000, generator=generator) * 2.0**-12
        model.w.grad = gradient
        aimed = (w.float() - gradient).double() + c
        storage.step()
        w, c = model.w.detach().double(), storage.state_dict()["rests"]["w"].double()
        assert ((w + c - aimed).abs() <= w.abs() * 2.0 ** (-2 * precision - 1)).all()


def test_an_infinite_weight_has_no_rest() -> None:
    model = Weight(torch.tensor([65504.0, 1.0]))
    storage = stored(SMALL["kahan-fp16"], model, lambda p: SGD(p, lr=1.0))
    model.w.grad = torch.tensor([-1000.0, math.nan])
    storage.step()
    assert model.w[0].item() == math.inf
    assert math.isnan(model.w[1].item())
    assert storage.state_dict()["rests"]["w"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("form", "result"), [("fp16", math.inf), ("e5m2", math.inf), ("e4m3fn", math.nan)]
)
def test_overflow_shows(form: str, result: float) -> None:
    after = one_step(Stored(weights=form), torch.ones(1), torch.tensor([-1e6]))
    assert after.item() == result or (math.isnan(result) and math.isnan(after.item()))


@pytest.mark.parametrize("name", SMALL)
def test_without_a_gradient_nothing_is_touched(name: str) -> None:
    storage = stored(SMALL[name], net())
    model = storage.model
    assert isinstance(model, Net)
    before = model.idle.detach().clone()
    for number in range(3):
        set_gradients(model, number)
        storage.step()
    assert torch.equal(model.idle.detach(), before)
    assert model.idle not in storage.optimizer.state
    # toggled off in the middle of training
    model.gain.requires_grad_(False)
    gain, states = model.gain.detach().clone(), copy.deepcopy(storage.optimizer.state[model.gain])
    set_gradients(model, 3)
    model.gain.grad = None
    storage.step()
    assert torch.equal(model.gain.detach(), gain)
    assert states == storage.optimizer.state[model.gain]


def test_frozen_parameters_are_stored_and_buffers_are_not() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4).double())
    model[0].requires_grad_(False)
    double, mean = model[2].weight.detach().clone(), torch.full((4,), 0.1)
    model[1].running_mean.copy_(mean)
    storage = Storage(Stored(weights="bf16"), model, SGD(model[1].parameters(), lr=0.1))
    frozen = model[0].weight.detach().clone()
    storage.prepare()
    assert torch.equal(model[0].weight, frozen.bfloat16().float())
    assert torch.equal(model[1].running_mean, mean)
    assert torch.equal(model[2].weight, double)


def test_tied_parameters_are_stored_once() -> None:
    storage = stored(SMALL["master"], net())
    names = set(storage.state_dict()["masters"])
    assert names == {"one.weight", "one.bias", "conv.weight", "conv.bias", "gain", "idle"}
    (update,) = run(storage, last=1)
    assert update.of == 36 + 6 + 108 + 4 + 1


def test_groups_keep_their_settings_and_foreign_parameters_are_stored() -> None:
    layer, extra = nn.Linear(4, 4), nn.Parameter(torch.full((5,), 0.3))
    groups = [
        {"params": [layer.weight], "lr": 0.0},
        {"params": [layer.bias, extra], "lr": 1.0},
    ]
    storage = Storage(Stored(weights="bf16", update="kahan"), layer, SGD(groups))
    storage.prepare()
    before = bits(layer)
    layer.weight.grad, layer.bias.grad = torch.ones(4, 4), torch.ones(4)
    extra.grad = torch.ones(5)
    update = storage.step()
    assert torch.equal(layer.weight.detach(), before["weight"])
    assert update.of == 9
    assert torch.equal(
        extra.detach(), round_to(round_to(torch.full((5,), 0.3), "bf16") - 1, "bf16")
    )
    assert "group 1, parameter 1" in storage.state_dict()["rests"]


# Native parameters


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("optimizer", ["adamw", "fused", "foreach", "momentum", "adagrad"])
@pytest.mark.parametrize("how", ["nearest", "stochastic", "kahan", "master"])
def test_native_parameters_give_the_bits_of_emulated_ones(
    dtype: torch.dtype, optimizer: str, how: str
) -> None:
    form = "bf16" if dtype is torch.bfloat16 else "fp16"
    recipe = {
        "nearest": Stored(weights=form, moments=(form, form)),
        "stochastic": Stored(weights=form, update="stochastic"),
        "kahan": Stored(weights=form, update="kahan"),
        "master": Stored(weights=form, master="fp32"),
    }[how]
    values = torch.randn(30, 10, generator=torch.Generator().manual_seed(0)).to(dtype)
    native, emulated = Weight(values), Weight(values.float())
    one = stored(recipe, native, OPTIMIZERS[optimizer])
    two = stored(recipe, emulated, OPTIMIZERS[optimizer])
    assert run(one) == run(two)
    assert native.w.dtype is dtype
    assert torch.equal(native.w.float(), emulated.w)


def test_native_gradients_are_collected_in_fp32() -> None:
    layer = nn.Linear(4, 4, bias=False).bfloat16()
    layer(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    stored(Stored(weights="bf16"), layer, SGD)
    for _ in range(300):  # bf16 would stop at 256
        layer(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is torch.float32
    assert torch.equal(layer.weight.grad, torch.full((4, 4), 301.0))


# Gradients of micro-batches


@pytest.mark.parametrize("form", ["fp32", "bf16", "fp16", "e5m2"])
def test_gradients_add_up_in_their_format(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(8, 8, bias=False)
    storage = stored(Stored(gradients=form), layer, SGD)
    total = torch.zeros(8, 8)
    for _ in range(10):
        x = torch.randn(3, 8, generator=generator)
        layer(x).sum().backward()
        storage.accumulate()
        (own,) = torch.autograd.grad(layer(x).sum(), layer.weight)
        total = round_to(total + own, form)
    assert torch.equal(layer.weight.grad, total)  # type: ignore[arg-type]


def test_a_sum_of_ones_in_bf16_stops_at_256() -> None:
    """B35: half of 512 micro-batches is lost."""
    for form, result in (("bf16", 256.0), ("fp32", 512.0)):
        model = Weight(torch.zeros(3))
        storage = stored(Stored(gradients=form), model, SGD)
        for _ in range(512):
            model.w.sum().backward()
            storage.accumulate()
        assert model.w.grad is not None
        assert model.w.grad.tolist() == [result] * 3


# Resuming


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("native", [False, True])
def test_a_resumed_run_is_bit_identical(name: str, native: bool) -> None:
    how = SMALL[name]
    if native and how.weights not in ("bf16", "fp16"):
        pytest.skip("no native dtype")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(how.weights, torch.float32)

    def fresh(seed: int) -> Storage:
        model = net(seed).to(dtype) if native else net(seed)
        return stored(how, model, seed=3)

    whole, part = fresh(0), fresh(0)
    updates = run(whole, last=7)
    run(part, last=4)
    buffer = io.BytesIO()
    saved = part.model.state_dict(), part.optimizer.state_dict(), part.state_dict()
    torch.save(saved, buffer)
    for order in ("model optimizer storage", "storage optimizer model"):
        buffer.seek(0)
        model_state, optimizer_state, state = torch.load(buffer, weights_only=True)
        resumed = fresh(1)
        for what in order.split():
            if what == "model":
                resumed.model.load_state_dict(model_state)
            elif what == "optimizer":
                resumed.optimizer.load_state_dict(optimizer_state)
            else:
                resumed.load_state_dict(state)
        again = resumed.state_dict()["states"]  # saved at once, nothing is lost either
        for name, states in state["states"].items():
            assert_same(again[name], states)
        assert run(resumed, 4, 7) == updates[4:]
        assert_same(bits(resumed.model), bits(whole.model))
        mine, other = resumed.state_dict(), whole.state_dict()
        for kind in ("masters", "rests"):
            assert_same(mine[kind], other[kind])
        assert mine["num_steps"] == 7


def test_foreign_states_are_refused() -> None:
    storage = stored(SMALL["master"], net())
    run(storage, last=2)
    good, before = storage.state_dict(), bits(storage.model)
    shape = {**good["masters"], "idle": torch.zeros(7)}
    without = {k: v for k, v in good["masters"].items() if k != "gain"}
    for state, message in (
        ({}, "no state of a Storage"),
        ({**good, "version": 2}, "version = 2, and here it is 1"),
        ({**good, "seed": 1}, "seed = 1"),
        ({**good, "rank": 1}, "rank = 1"),
        (stored(SMALL["kahan"], net()).state_dict(), "written with stored"),
        ({**good, "masters": shape}, r"have \(7,\) of torch.float32 for idle, which is \(3,\)"),
        ({**good, "masters": without}, "of other parameters: gain"),
    ):
        with pytest.raises(RecipeError, match=message):
            storage.load_state_dict(state)
    assert storage.num_steps == 2
    assert_same(bits(storage.model), before)
    unprepared = Storage(SMALL["master"], storage.model, storage.optimizer)
    with pytest.raises(RecipeError, match="call prepare"):
        unprepared.load_state_dict(good)


def test_weights_changed_from_outside_are_noticed() -> None:
    storage = stored(SMALL["master"], net())
    run(storage, last=2)
    model = storage.model
    assert isinstance(model, Net)
    with torch.no_grad():
        model.gain.copy_(model.gain.clone())  # the same value: no harm
    run(storage, 2, 3)
    with torch.no_grad():
        model.gain.fill_(3.0)
    set_gradients(model, 3)
    with pytest.raises(RecipeError, match="gain is no longer what its master copy says"):
        storage.step()
    masters = storage.state_dict()["masters"]
    storage.prepare()
    again = storage.state_dict()["masters"]
    assert again["gain"].item() == 3.0
    assert all(again[name] is masters[name] for name in masters if name != "gain")
    storage.step()


# Failures and refusals


class Odd(SGD):
    """An optimizer with a state that nobody knows."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for p in self.param_groups[0]["params"]:
            self.state[p]["odd"] = torch.zeros_like(p)


class Broken(SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        raise RuntimeError("broken")


@pytest.mark.parametrize("name", ["nearest", "kahan", "master"])
@pytest.mark.parametrize(
    ("make", "error"), [(Broken, RuntimeError), (Odd, RecipeError), (Rprop, RecipeError)]
)
def test_a_step_that_fails_leaves_the_weights(
    name: str, make: type[SGD], error: type[Exception]
) -> None:
    how = copy.copy(SMALL[name])
    object.__setattr__(how, "moments", ("bf16", "bf16"))
    storage = stored(how, net(), lambda p: make(p, lr=0.5))
    before, state = bits(storage.model), storage.state_dict()
    set_gradients(storage.model, 0)
    with pytest.raises(error, match=r"broken|state 'odd' for|state 'step_size' for gain"):
        storage.step()
    assert_same(bits(storage.model), before)
    for kind in ("masters", "rests"):
        assert_same(storage.state_dict()[kind], state[kind])
    assert storage.num_steps == 0


def test_unknown_states_are_left_alone_with_fp32_moments() -> None:
    for make in (Odd, Rprop, ASGD):
        run(stored(Stored(weights="bf16"), net(), lambda p, make=make: make(p, lr=0.01)), last=2)


def test_muon_keeps_its_momentum() -> None:
    model = Weight(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))
    storage = stored(SMALL["nearest"], model, Muon)
    run(storage, last=2)
    moment = storage.optimizer.state[model.w]["momentum_buffer"]
    assert torch.equal(moment, round_to(moment, "bf16"))


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True)


def test_what_cannot_be_stored_is_refused() -> None:
    shared = nn.Linear(4, 4), nn.Linear(4, 4)
    shared[1].weight = nn.Parameter(shared[0].weight.data)
    for model, message in (
        (nn.Linear(4, 4).double(), r"weight is torch.float64; .*bf16.*model.float\(\)"),
        (nn.Linear(4, 4).half(), r"kept in torch.float32 or torch.bfloat16"),
        (Weight(torch.zeros(3, dtype=torch.complex64)), "w is torch.complex64"),
        (nn.Linear(4, 4, device="meta"), "weight is on the meta device"),
        (nn.ModuleList(shared), "0.weight and 1.weight are two parameters in the same memory"),
    ):
        with pytest.raises(RecipeError, match=message):
            stored(Stored(weights="bf16"), model, SGD)
    whole = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)
    sgd = SGD([nn.Parameter(torch.zeros(1)), whole])
    with pytest.raises(RecipeError, match="group 0, parameter 1 is torch.int64"):
        Storage(Stored(), nn.Linear(2, 2), sgd)
    layer = nn.Linear(4, 4)
    with pytest.raises(RecipeError, match="LBFGS needs a closure"):
        Storage(Stored(), layer, LBFGS(layer.parameters()))


def test_sparse_gradients_are_refused_before_anything_moves() -> None:
    model = Sparse()
    storage = stored(Stored(weights="bf16"), model, SGD)
    before = bits(model)
    model.table(torch.tensor([1, 2])).sum().backward()
    for call in (storage.step, storage.accumulate):
        with pytest.raises(RecipeError, match=r"gradient of table.weight is torch.sparse_coo"):
            call()
    assert_same(bits(model), before)


def test_new_parameters_are_noticed() -> None:
    model = net()
    storage = Storage(SMALL["master"], model, SGD(model.parameters()))
    with pytest.raises(RecipeError, match=r"gain is new to storage; call its prepare\(\)"):
        storage.step()
    storage.prepare()
    extra = nn.Parameter(torch.full((2,), 0.1))
    storage.optimizer.add_param_group({"params": [extra]})
    with pytest.raises(RecipeError, match="group 1, parameter 0 is new"):
        storage.step()
    storage.prepare()
    storage.step()
    assert torch.equal(extra.detach(), round_to(torch.full((2,), 0.1), "bf16"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weights": "int8"}, "int8 is no float format"),
        ({"weights": "mxfp4"}, "mxfp4 is no float format"),
        ({"weights": "e2m1fn"}, "e2m1fn cannot store weights or states: it lacks NaN"),
        ({"moments": ("fp32", "e8m0fnu")}, "e8m0fnu cannot store weights or states"),
        ({"gradients": "fp64"}, "fp64 cannot store"),
        ({"master": "fp32", "update": "kahan"}, "choose one"),
        ({"update": "stochastic"}, "fp32 weights hold what"),
        ({"weights": "bf16", "master": "fp32", "update": "stochastic"}, "an fp32 master hold"),
    ],
)
def test_impossible_storage_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Stored(**fields)


# Bookkeeping


def by_hand(start: Tensor, aimed: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> tuple[int, Any]:
    """Elements that aim elsewhere and stay, and the quality, in exact rationals."""
    lost, product, squares = 0, Fraction(0), Fraction(0)
    for i in range(start.numel()):
        intended = Fraction(aimed[i].item()) - Fraction(start[i].item())
        real = sum(Fraction(new[i].item()) - Fraction(old[i].item()) for old, new in pairs)
        lost += intended != 0 and real == 0
        product, squares = product + real * intended, squares + intended**2
    return lost, float(product / squares)


@pytest.mark.parametrize("size", [1, 63, 64, 700])
def test_the_numbers_of_a_step_are_exact(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(size, generator=generator) * 0.02
    gradient = torch.randn(size, generator=generator) * 1e-4
    gradient[1::5] = 0
    for name in ("nearest", "stochastic", "kahan", "master", "e4m3fn", "fp16-master"):
        model = Weight(values)
        storage = stored(SMALL[name], model, lambda p: SGD(p, lr=1.0))
        for _ in range(2):
            state = storage.state_dict()
            old, rest = model.w.detach().clone(), state["rests"].get("w")
            master = state["masters"].get("w")
            start = old if master is None else master
            aimed = start - gradient
            model.w.grad = gradient.clone()
            update = storage.step()
            state = storage.state_dict()
            weights = old, model.w.detach()
            carried = [weights] if master is None else [(master, state["masters"]["w"])]
            if rest is not None:
                carried.append((rest, state["rests"]["w"]))
            lost, quality = by_hand(start, aimed, carried)
            unmoved, weights_quality = by_hand(start, aimed, [weights])
            assert (update.lost, update.unmoved) == (lost, unmoved)
            assert update.of == int((aimed != start).sum())
            assert update.quality == pytest.approx(quality, rel=1e-12)
            assert update.weights_quality == pytest.approx(weights_quality, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_the_kernel_and_torchs_operations_agree(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = list(torch.randn(6, 300_001, generator=generator).bfloat16().float())
    tensors[1][::3] = tensors[0][::3]
    tensors[3][::2] = tensors[2][::2]
    tensors[5][::5] = tensors[4][::5]
    results = []
    for function in (movements._taken_here, movements._taken):
        monkeypatch.setattr(movements, "_taken_here", function)
        numbers = Movement()
        more = {} if mode == WEIGHTS else {"before": tensors[4], "after": tensors[5]}
        numbers.add(*tensors[:4], mode=mode, **more)
        results.append(numbers.result())
    one, two = results
    assert (one.of, one.lost, one.unmoved) == (two.of, two.lost, two.unmoved)
    if mode == "weights":  # what is carried is the weights
        assert one.quality == one.weights_quality
    assert one.quality == pytest.approx(two.quality, rel=1e-9)
    assert one.weights_quality == pytest.approx(two.weights_quality, rel=1e-9)


def test_without_an_update_there_is_no_quality() -> None:
    for gradient in (None, torch.zeros(4), torch.full((4,), math.inf)):
        model = Weight(torch.ones(4))
        storage = stored(SMALL["nearest"], model, lambda p: SGD(p, lr=1.0))
        model.w.grad = gradient
        update = storage.step()
        assert update.quality is None
        assert update.weights_quality is None
        assert update.lost == 0
        assert update.of == (4 if gradient is not None and gradient.isinf().all() else 0)
    empty = Weight(torch.zeros(0))
    storage = stored(SMALL["kahan"], empty, lambda p: SGD(p, lr=1.0))
    empty.w.grad = torch.zeros(0)
    assert storage.step().of == 0


def test_a_scaler_may_step_the_optimizer() -> None:
    model = Weight(torch.ones(4))
    storage = stored(SMALL["stochastic"], model, lambda p: SGD(p, lr=1.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(model.w.sum()).backward()
    scaler.unscale_(storage.optimizer)
    update = storage.step(lambda: scaler.step(storage.optimizer))
    assert update.of == 4
    assert model.w.tolist() == [0.0] * 4
