"""Weights in 16 bits: in the model's own dtype, with masters, and as the laboratory's step does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adagrad

from floatscope.errors import LedgerError
from floatscope.lab.memory.optimizers import policy_of
from floatscope.memory import Category, Measurement, Stage, Workload, measure
from floatscope.memory.fit import bookkeeping
from floatscope.memory.kept import formats_of, way_of
from floatscope.memory.storages import converted, mapped
from floatscope.memory.trace import trace
from floatscope.recipes import recipe
from floatscope.recipes.catalogue import CATALOGUE
from tests.memory_workloads import small_batch, tiny_gpt

N = 8 * 3 + 3


def mse(model: nn.Module, batch: Any) -> Tensor:
    """Small enough for gradients that are scaled by 65 536 and kept in fp16."""
    return F.mse_loss(model(batch[0]), batch[1]) * 2**-6


def linear(name: str, backend: str = "native", **options: Any) -> Workload:
    given = {"model": lambda: nn.Linear(8, 3), "batch": small_batch, "loss_of": mse}
    return Workload(**given | options, recipe=name, backend=backend)


def held(measured: Measurement, stage: Stage) -> dict[Category, int]:
    states = (
        Category.PARAMETERS, Category.MASTER, Category.GRADIENTS, Category.FIRST_MOMENT,
        Category.SECOND_MOMENT, Category.OPTIMIZER,
    )  # fmt: skip
    return {c: n for c, n in measured[stage].live.by_category().items() if c in states}


def test_the_way_of_every_recipe() -> None:
    plain = {"bf16-pure": "16 bits", "bf16-master": "masters", "fp16-O2": "masters"}
    stored = {"fp16-pure": "storage", "bf16-sr": "storage", "bf16-kahan": "storage"}
    for name, known in CATALOGUE.items():
        assert way_of(known) == {**plain, **stored}.get(name, "as made")
        assert way_of(known, "emulated") == ("storage" if name in plain | stored else "as made")
    assert formats_of(recipe("bf16-master")).optimizer == "fp32"
    assert formats_of(recipe("bf16-master"), "emulated").casts


def test_everything_in_16_bits() -> None:
    measured = measure(linear("bf16-pure"))
    assert held(measured, Stage.BACKWARD_2) == {
        Category.PARAMETERS: 2 * N, Category.GRADIENTS: 2 * N, Category.FIRST_MOMENT: 2 * N,
        Category.SECOND_MOMENT: 2 * N, Category.OPTIMIZER: 2 * 4,
    }  # fmt: skip
    assert {row.dtype for row in measured.saved} == {"bf16"}
    assert "model.bfloat16() in plain Torch" in measured.notes[0]
    traced = trace(linear("bf16-pure"))
    assert (traced.saved, traced.stages) == (measured.saved, measured.stages)


@pytest.mark.parametrize("name", ["bf16-master", "fp16-O2"])
def test_masters(name: str) -> None:
    measured = measure(linear(name))
    scaler = 2 * 4 if name == "fp16-O2" else 0
    assert held(measured, Stage.BUILD) == {Category.PARAMETERS: 2 * N, Category.MASTER: 4 * N}
    assert held(measured, Stage.OPTIMIZER) == {
        Category.PARAMETERS: 2 * N, Category.MASTER: 4 * N, Category.FIRST_MOMENT: 4 * N,
        Category.SECOND_MOMENT: 4 * N, Category.OPTIMIZER: 2 * 4 + scaler,
    }  # fmt: skip
    assert held(measured, Stage.BACKWARD_2)[Category.GRADIENTS] == 2 * N
    step = measured[Stage.OPTIMIZER].peak.by_category()[Category.OPTIMIZER_TEMPORARIES]
    assert step >= 4 * N  # fp32 copies of the gradients
    traced = trace(linear(name))
    assert (traced.saved, traced.stages) == (measured.saved, measured.stages)


def test_weights_are_the_masters_rounded() -> None:
    made: list[nn.Module] = []

    def model() -> nn.Module:
        made.append(nn.Linear(8, 3))
        return made[-1]

    masters: list[Tensor] = []

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return mse(model, batch)

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        masters.append(optimizer)  # type: ignore[arg-type]
        return optimizer

    measure(linear("bf16-master", model=model, loss_of=loss_of, optimizer=optimizer))
    (given,) = masters
    fp32 = given.param_groups[0]["params"]  # type: ignore[attr-defined]
    assert [p.dtype for p in fp32] == [torch.float32] * 2
    for weight, master in zip(made[0].parameters(), fp32, strict=True):
        assert torch.equal(weight, master.bfloat16())
        assert not torch.equal(weight.float(), master)


def test_masters_take_over_states_that_exist_before_the_first_step() -> None:
    def optimizer(model: nn.Module) -> Adagrad:
        return Adagrad(model.parameters(), foreach=False)

    measured = measure(linear("bf16-master", optimizer=optimizer))
    rows = measured[Stage.OPTIMIZER].live.where(category=Category.OPTIMIZER)
    sums = [row for row in rows if row.term.endswith(": sum")]
    assert sum(row.bytes for row in sums) == 4 * N
    assert {row.dtype for row in sums} == {"fp32"}
    assert measured[Stage.OPTIMIZER].live.unexplained == 0


@pytest.mark.parametrize(
    ("name", "backend", "weights", "extra"),
    [
        ("bf16-kahan", "native", 2, {Category.OPTIMIZER: 2 * N}),
        ("bf16-sr", "native", 2, {}),
        ("fp16-pure", "native", 2, {}),
        ("bf16-pure", "emulated", 4, {}),
        ("bf16-master", "emulated", 4, {Category.MASTER: 4 * N}),
    ],
)
def test_storage(name: str, backend: str, weights: int, extra: dict[Category, int]) -> None:
    measure(linear(name, backend))  # compiling kernels leaves garbage that holds on to tensors
    measured = measure(linear(name, backend))
    states = held(measured, Stage.BACKWARD_2)
    assert states[Category.PARAMETERS] == weights * N
    for category in (Category.GRADIENTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT):
        assert states[category] == 4 * N
    counters = 2 * 4 + (2 * 4 if recipe(name).loss_scaling else 0)
    assert states[Category.OPTIMIZER] - counters == extra.get(Category.OPTIMIZER, 0)
    assert states.get(Category.MASTER, 0) == extra.get(Category.MASTER, 0)
    assert all(stage.live.unexplained == 0 for stage in measured.stages)
    policy = policy_of("adamw", name, backend)
    assert policy is not None
    assert policy.total == weights + 12 + sum(extra.values()) // N
    assert "kept by the laboratory's own step" in measured.notes[0]
    with pytest.raises(LedgerError, match="looks at what becomes of each value.*Measure it instea"):
        trace(linear(name, backend))


def test_emulated_storage_saves_what_autocast_saves() -> None:
    stored = measure(tiny_gpt("bf16-pure", "fused", "emulated")[0])
    assert stored.saved == measure(tiny_gpt("bf16-mixed", "fused")[0]).saved


def test_bytes_a_parameter_on_a_device() -> None:
    totals = {name: float(bookkeeping(name).total) for name in CATALOGUE}
    sixteen_bits = {"bf16-pure": 8, "fp16-pure": 8, "bf16-sr": 14}
    assert totals == {name: sixteen_bits.get(name, 16) for name in CATALOGUE}
    assert policy_of("sgd", "bf16-pure") is not None
    assert policy_of("sgd-momentum", "bf16-pure").total == 6  # type: ignore[union-attr]
    assert policy_of("adagrad", "bf16-pure") is None


def test_batches_follow_the_models_dtype() -> None:
    x, ids = torch.ones(2), torch.ones(2, dtype=torch.int64)
    batch: dict[str, Any] = {"x": x, "ids": ids, "name": "one", "more": [(x, 3)]}
    found = converted(batch, torch.bfloat16)
    assert (found["x"].dtype, found["more"][0][0].dtype) == (torch.bfloat16,) * 2
    assert found["ids"] is ids
    assert found["more"][0][1] == 3
    assert converted(ids, torch.bfloat16) is ids
    change: Callable[[Tensor], Tensor] = lambda tensor: tensor + 1  # noqa: E731
    assert mapped({1, 2}, change) == {1, 2}
    assert isinstance(mapped([x], change), list)
