"""Updates: the difference that a step made, what did not move, and what storage would swallow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.amp import GradScaler

import floatscope as fs
from floatscope.formats import FloatFormat
from floatscope.rounding.reference import round_value
from floatscope.rounding.rules import Rules, rules_for
from floatscope.spectrum.capture import differences
from floatscope.spectrum.capture.records import Record, Update
from floatscope.spectrum.predict import Share

INF, NAN = math.inf, math.nan


class Weight(nn.Module):
    """One parameter."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(values.clone())


class Put(torch.optim.Optimizer):
    """Puts given values where the weights were."""

    def __init__(self, model: Weight, after: Tensor) -> None:
        super().__init__(model.parameters(), {})
        self.after = after

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            self.param_groups[0]["params"][0].copy_(self.after)


def record_of(before: Tensor, after: Tensor, gradient: Tensor | None, **more: Any) -> Record:
    model = Weight(before)
    model.w.grad = gradient
    optimizer = Put(model, after)
    with fs.capture(model, optimizer=optimizer, roles="update", **more) as seen:
        optimizer.step()
    (record,) = seen.records
    return record


def numbers(record: Record) -> Update:
    assert record.update is not None
    return record.update


def swallowed(before: float, after: float, form: FloatFormat, rules: Rules) -> bool:
    """In exact rationals, where they apply."""
    change = after - before
    stored = round_value(before, form, rules)
    if change == 0 or math.isnan(change) or not math.isfinite(stored):
        return False
    return (
        round_value(stored + round_value(change, fs.format("fp64"), rules_for("fp64")), form, rules)
        == stored
    )  # type: ignore[operator, arg-type]


@settings(max_examples=60)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8),
    st.lists(st.sampled_from([0.0, 2.0**-24, 2.0**-12, 2.0**-9, -(2.0**-8), -0.5, 1.0]), min_size=8,
             max_size=8),
    st.sampled_from(["bf16", "fp16", "e4m3fn", "e5m2", "e2m1fn"]),
)  # fmt: skip
def test_swallowed_updates_are_those_of_exact_arithmetic(
    before: list[float], factors: list[float], form: str
) -> None:
    old = torch.tensor(before)
    new = old + old * torch.tensor(factors[: len(before)])
    new = torch.where(new.isfinite(), new, old)
    kind = fs.format(form)
    assert isinstance(kind, FloatFormat)
    expected = sum(
        swallowed(a, b, kind, rules_for(kind))
        for a, b in zip(old.tolist(), new.tolist(), strict=True)
        if abs(a) < kind.overflow_threshold
    )
    held = [abs(a) < kind.overflow_threshold for a in old.tolist()]
    old, new = old[held], new[held]
    update = numbers(record_of(old, new, None, storage=[form]))
    assert update.swallowed[form].count == expected
    assert update.swallowed[form].of == update.moved == int((old != new).sum())


def test_the_course_example() -> None:
    """Next to 256, bf16 values are 2 apart and fp16 values 0.25."""
    before, after = torch.full((4,), 256.0), torch.tensor([256.0, 256.5, 257.0, 257.5])
    update = numbers(record_of(before, after, torch.tensor([1.0, 1.0, 0.0, 0.0])))
    assert update.moved == 3
    assert update.swallowed["bf16"].count == 2  # 257 is a tie, which the even 256 wins
    assert update.swallowed["fp16"].count == 0
    assert update.swallowed["bf16"].fraction == 2 / 3
    assert (update.stuck.count, update.stuck.of) == (1, 2)
    assert update.stuck.fraction == 0.5


def test_stuck_elements_are_judged_by_the_gradient_before_the_step() -> None:
    class Consuming(Put):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                parameter.grad = None

    model = Weight(torch.ones(3))
    model.w.grad = torch.tensor([1.0, 0.0, NAN])
    optimizer = Consuming(model, torch.ones(3))
    with fs.capture(model, optimizer=optimizer, roles="update") as seen:
        optimizer.step()
    assert numbers(seen.records[0]).stuck == Share(2, 2)
    assert seen.step == 1


def test_edges_of_swallowing() -> None:
    before = torch.tensor([1e5, 1.0, NAN, INF, 100.0])
    after = torch.tensor([1e5 + 1, NAN, 1.0, INF, 101.0])
    fp16 = numbers(record_of(before, after, None, storage=["fp16"]))
    assert fp16.swallowed["fp16"].count == 1  # 1e5 is infinite there, and stays so
    assert fp16.moved == 5  # NaN is not zero
    e2m1fn = numbers(record_of(before, after, None, storage=["e2m1fn"]))  # without NaN
    assert e2m1fn.swallowed["e2m1fn"].count == 2  # what is larger than 6 is 6
    e4m3fn = numbers(record_of(before, after, None, storage=["e4m3fn"]))
    assert e4m3fn.swallowed["e4m3fn"].count == 1  # next to 100, values are 8 apart
    assert numbers(record_of(before, after, None, storage=())).swallowed == {}


def test_nothing_moves_below_half_an_ulp() -> None:
    layer = nn.Linear(4, 4, bias=False)
    layer.weight.data.fill_(1.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-9)
    with fs.capture(layer, optimizer=optimizer) as seen:
        layer(torch.tensor([1.0, 0.0, 2.0, 0.0])).sum().backward()
        optimizer.step()
    (record,) = seen.select(role="update")
    update = numbers(record)
    assert (update.stuck.count, update.stuck.of, update.moved) == (8, 8, 0)
    assert record.spectrum.positive_zeros == 16
    assert math.isnan(update.swallowed["bf16"].fraction)


@pytest.mark.parametrize("piece", [1 << 18, 7])
def test_differences_are_exact(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """Also where fp32 does not hold them, or only as subnormals."""
    monkeypatch.setattr(differences, "PIECE", piece)
    generator = torch.Generator().manual_seed(0)
    size = 100
    before = torch.randn(size, generator=generator) * 2.0 ** torch.arange(-50, 50)
    near = before * (1 + torch.randn(size, generator=generator) * 1e-3)
    far = torch.randn(size, generator=generator)
    tiny = torch.full((size,), 2.0**-149) * torch.arange(size)
    for old, new in ((before, near), (before, far), (tiny, tiny.flip(0)), (tiny, before)):
        record = record_of(old, new, None)
        assert record.spectrum == fs.Spectrum.of(new.double() - old.double())
        assert record.calls == 1
    special = torch.tensor([NAN, INF, -INF, 1.0, 0.0, -0.0, 1.0])
    moved = torch.tensor([1.0, 1.0, 1.0, INF, 0.0, 0.0, 1.0 + 2.0**-23])
    assert record_of(special, moved, None).spectrum == fs.Spectrum.of(
        moved.double() - special.double()
    )
    assert record_of(torch.empty(0), torch.empty(0), None).spectrum == fs.Spectrum.empty()
    wide = record_of(torch.tensor([1.0]), torch.tensor([-(2.0**-26)]), None)
    assert wide.spectrum.amax == 1 + 2.0**-26  # fp32 does not hold it


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_of_other_dtypes(dtype: torch.dtype) -> None:
    old, new = torch.tensor([1.0, 2.0, 3.0]).to(dtype), torch.tensor([1.0, 2.5, 3.25]).to(dtype)
    record = record_of(old, new, torch.ones(3, dtype=dtype), storage=["e5m2"])
    assert record.spectrum == fs.Spectrum.of(torch.tensor([0.0, 0.5, 0.25], dtype=torch.float64))
    assert numbers(record).stuck.count == 1
    assert numbers(record).swallowed["e5m2"].count == 1  # 3.25 is a tie that 3 wins


def test_views_and_transposed_parameters() -> None:
    old = torch.arange(12.0).view(3, 4).t()
    record = record_of(old, old + torch.eye(4, 3), torch.ones(4, 3))
    assert (numbers(record).moved, numbers(record).stuck.count) == (3, 9)


def fused() -> tuple[nn.Module, torch.optim.Optimizer]:
    layer = nn.Linear(4, 4)
    return layer, torch.optim.Adam(layer.parameters(), lr=0.1, fused=True)


@pytest.mark.parametrize("unscale", [True, False])
def test_a_fused_optimizer_that_withholds_its_step(unscale: bool) -> None:
    """It is called for skipped steps too, and leaves the weights as they are."""
    layer, optimizer = fused()
    scaler = GradScaler("cpu", init_scale=8.0)
    with fs.capture(layer, optimizer=optimizer, loss_scale=scaler) as seen:
        for factor in (1.0, INF, 1.0):
            optimizer.zero_grad()
            scaler.scale(layer(torch.ones(2, 4)).sum() * factor).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert {r.step for r in seen.select(role="update")} == {0, 2}
    (unseen,) = seen.unseen
    assert "withheld its step" in unseen.reason
    assert unseen.steps == (1,)
    finite = seen.total(step=2, role="weight_gradient")
    assert finite == fs.Spectrum.sum([fs.Spectrum.of(torch.full((20,), 2.0))])


def test_a_closure_makes_the_gradient_that_counts() -> None:
    layer = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=2)
    layer.weight.grad = torch.zeros(1, 4)  # as an earlier step left it
    x = torch.eye(4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (layer(x) - 1).square().sum()
        loss.backward()
        return loss

    before = layer.weight.detach().clone()
    with fs.capture(layer, optimizer=optimizer) as seen:
        optimizer.step(closure)
    (record,) = seen.select(role="update")
    moved = layer.weight.detach().double() - before.double()
    assert record.spectrum == fs.Spectrum.of(moved)
    assert layer.weight.grad is not None
    assert numbers(record).stuck.of == int((layer.weight.grad != 0).sum())
    assert seen.step == 1


def test_parameters_that_join_later() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with fs.capture(model, optimizer=optimizer, roles="update") as seen:
        optimizer.step()
        optimizer.add_param_group({"params": [*model[1].parameters()]})
        optimizer.step()
    assert [len(seen.select(step=step)) for step in (0, 1)] == [2, 4]


def test_a_step_that_raises_is_no_step() -> None:
    """Nor are the two calls of hooks two steps, where a step calls that of its base class."""
    layer = nn.Linear(2, 2)

    class Failing(torch.optim.SGD):
        fails = True

        def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
            if self.fails:
                raise ValueError("no")
            return super().step(closure)

    optimizer = Failing(layer.parameters(), lr=0.1)
    with fs.capture(layer, optimizer=optimizer) as seen:
        layer(torch.ones(1, 2)).sum().backward()
        with pytest.raises(ValueError, match="no"):
            optimizer.step()
        assert seen.step == 0
        optimizer.fails = False
        optimizer.step()
    assert len(seen.select(role="update", step=0)) == 2
    assert seen.step == 1
