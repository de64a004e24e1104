"""Recipes with operands of their own: traced like measured, and every byte of the engine named."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from floatscope.errors import FormatError
from floatscope.memory import Category, Lifetime, Measurement, Stage, measure
from floatscope.memory.between import OPERANDS, between_peaks
from floatscope.memory.closed_form import saved
from floatscope.memory.reconcile import between, reconcile
from floatscope.memory.trace import trace
from floatscope.recipes import recipe
from floatscope.recipes.accumulate import accumulate
from floatscope.rounding import block_round, round_to
from floatscope.rounding.hadamard import Hadamard, turned
from floatscope.rounding.outputs import shapes_only
from tests.memory_workloads import tiny_gpt

RECIPES = ("tf32", "fp8-current", "fp8-delayed", "mxfp8", "nvfp4")


@cache
def measured(name: str) -> Measurement:
    return measure(tiny_gpt(name, "materialized")[0])


@pytest.mark.parametrize("name", RECIPES)
def test_saved_tensors_are_those_of_the_format_between_products(name: str) -> None:
    numbers = tiny_gpt(name, "materialized")[1]
    found = measured(name).saved
    names = ("module", "operation", "dtype")
    assert found.project(*names) == saved(numbers, name).project(*names)
    same = "fp32" if recipe(name).products == "fp32" else "bf16-mixed"
    assert found == measured_as(same).saved
    assert reconcile(numbers, name, found).unexplained == 0


@cache
def measured_as(name: str) -> Measurement:
    return measure(tiny_gpt(name, "materialized")[0])


@pytest.mark.parametrize("name", RECIPES)
def test_the_trace_agrees_in_what_is_alive(name: str) -> None:
    traced = trace(tiny_gpt(name, "materialized")[0])
    assert traced.saved == measured(name).saved
    for real, fake in zip(measured(name).stages, traced.stages, strict=True):
        assert fake.live == real.live
        assert fake.peak.total == pytest.approx(real.peak.total, rel=0.01)
        assert real.live.unexplained == fake.live.unexplained == 0


@pytest.mark.parametrize("name", RECIPES)
def test_quantized_weights_have_rows_from_forward_to_backward(name: str) -> None:
    rows = measured(name)[Stage.FORWARD].live.where(term="quantized weight")
    numbers = tiny_gpt(name, "materialized")[1]
    body = numbers.num_layers * (4 * 32 * 32 + 3 * 32 * 48)
    large = [row for row in rows if row.bytes > 4]
    modules = {row.module for row in large}
    assert {m.rpartition(".")[2] for m in modules if m} <= {*"qkvo", "gate", "up", "down"}
    assert "kept by the engine" in large[0].reason
    assert {row.lifetime for row in rows} == {Lifetime.SAVED}
    assert {row.category for row in rows} == {Category.CASTS}
    kept = [n for n, why in kept_out(name).items() if n.startswith("blocks") and why]
    if not kept:
        each = 4 if large[0].dtype == "fp32" else 2
        assert sum(row.bytes for row in large if row.module) >= each * body
    after = measured(name)[Stage.BACKWARD].live
    assert not [row for row in after if row.term.startswith("quantized")]


def kept_out(name: str) -> dict[str, str]:
    from floatscope.recipes.keeping_out import kept_weights

    workload, _ = tiny_gpt(name, "materialized")
    return kept_weights(workload.model(), recipe(name).kept)


def test_operands_in_the_way_from_one_peak_to_another() -> None:
    mixed, quantized = measured_as("bf16-mixed"), measured("fp8-current")
    terms = between_peaks(mixed, quantized, "bf16-mixed")
    assert terms.total == quantized.peak.peak.total
    sizes = {row.term: row.bytes for row in terms}
    assert sizes.pop("bf16-mixed") == mixed.peak.peak.total
    assert sizes == {OPERANDS: quantized.peak.peak.total - mixed.peak.peak.total}
    assert quantized[Stage.BACKWARD_2].engine >= sizes[OPERANDS] > 0
    assert mixed.peak.engine == 0


def test_recipes_of_a_study_in_one_chain() -> None:
    chain = ("fp32", "bf16-mixed", "bf16-pure", "bf16-master", "fp8-current")
    numbers = tiny_gpt("fp32", "materialized")[1]
    found = [trace(tiny_gpt(name, "materialized")[0]) for name in chain]
    for (one, before), (other, after) in zip(
        zip(chain, found, strict=True), list(zip(chain, found, strict=True))[1:], strict=False
    ):
        assert between_peaks(before, after, one).total == after.peak.peak.total
        terms = between(saved(numbers, one), saved(numbers, other), one)
        assert terms.total == after.saved.total
        assert all(row.reason for row in terms.rows[1:])


# Shapes alone


def test_rounding_of_shapes_alone() -> None:
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.randn(64, 96).bfloat16())
        with pytest.raises(FormatError, match="looks into memory"):
            round_to(x, "e4m3fn")
        with shapes_only():
            y = round_to(x, "e4m3fn", dtype=torch.float32)
            assert (y.shape, y.dtype) == (x.shape, torch.float32)
            for name, axis in (("mxfp8-e4m3", -1), ("nvfp4", -2), ("fp8-tensor", -1)):
                blocks = block_round(x, name, axis=axis, dtype=torch.bfloat16, apart=True)
                assert (blocks.values.shape, blocks.values.dtype) == (x.shape, torch.bfloat16)
            assert turned(x, Hadamard(16, 3), -1).shape == x.shape
            assert accumulate(x, x.mT.contiguous(), "hopper-fp8").shape == (64, 64)
        with pytest.raises(FormatError, match="looks into memory"):
            block_round(x, "mxfp4")
    real = block_round(torch.randn(64, 96), "nvfp4", axis=-2)
    with FakeTensorMode() as mode, shapes_only():
        fake = block_round(mode.from_tensor(torch.randn(64, 96)), "nvfp4", axis=-2)
    for one, other in zip(real, fake, strict=True):
        assert one is not None
        assert other is not None
        assert (one.shape, one.dtype) == (other.shape, other.dtype)


def test_what_a_trace_makes_first_does_not_stay_fake() -> None:
    trace(tiny_gpt("nvfp4", "materialized")[0])
    x = torch.randn(32, 32)
    assert torch.equal(turned(x, Hadamard(16, 0), -1), turned(x, Hadamard(16, 0), -1))
    assert type(turned(x, Hadamard(16, 0), -1)) is torch.Tensor
