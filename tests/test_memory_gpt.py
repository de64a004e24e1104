"""The laboratory's GPT: closed form, trace, meter and allocator, to the byte."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from floatscope.errors import LedgerError, RecipeError
from floatscope.lab.gpt_config import GPTConfig
from floatscope.memory import Category, Ledger, Measurement, Stage, measure
from floatscope.memory.closed_form import GPTNumbers, live, peak, saved, states
from floatscope.memory.trace import trace
from tests.memory_workloads import gpt, refereed, tiny_gpt

RECIPES = ("fp32", "bf16-mixed", "fp16-mixed")
ATTENTIONS = ("fused", "materialized")

# Bytes saved for backward at 32 x 256 tokens, measured when the design was made.
SAVED = {
    ("fp32", "materialized"): 1_057_390_596,
    ("fp32", "fused"): 823_558_148,
    ("bf16-mixed", "materialized"): 695_795_716,
    ("bf16-mixed", "fused"): 579_403_780,
    ("fp16-mixed", "materialized"): 695_795_716,
    ("fp16-mixed", "fused"): 579_403_780,
}

# MiB after forward and at its peak, at backward's peak, and the same for the second step; the
# prototype's model had one set of RoPE tables and one mask, ours has one a layer.
STAGES = {
    ("fp32", "materialized"): (1022.57, 1086.57, 1150.57, 1050.71, 1114.71, 1178.71),
    ("fp32", "fused"): (799.57, 863.57, 927.57, 827.71, 891.71, 955.71),
    ("bf16-mixed", "materialized"): (677.73, 773.73, 805.73, 705.87, 801.87, 833.87),
    ("bf16-mixed", "fused"): (566.73, 662.73, 694.73, 594.87, 690.87, 722.87),
    ("fp16-mixed", "materialized"): (677.73, 773.73, 805.73, 705.87, 801.87, 833.87),
    ("fp16-mixed", "fused"): (566.73, 662.73, 694.73, 594.87, 690.87, 722.87),
}
MORE_BUFFERS = 3 * (2 * 256 * 16 * 4 + 256 * 256)
MIB = 1 << 20


def rows_of(ledger: Ledger) -> Ledger:
    """Rows without their wording: category, module, function, dtype, bytes, count."""
    return ledger.project("module", "operation", "dtype")


def assert_closed_form(
    measured: Measurement, numbers: GPTNumbers, recipe: str, *, peaks: bool = True
) -> None:
    """Saved tensors row by row with counts, everything alive by module, peaks to the byte."""
    assert rows_of(measured.saved) == rows_of(saved(numbers, recipe))
    for stage in measured.stages:
        alive = stage.live.project("module", "dtype")
        assert alive == live(numbers, recipe, stage.stage).project("module", "dtype")
        assert stage.live.unexplained == stage.peak.unexplained == 0
        if peaks and stage.stage is not Stage.BUILD:
            assert stage.peak.total == peak(numbers, recipe, stage.stage).total


@cache
def measured_tiny(recipe: str, attention: str) -> tuple[Measurement, dict[str, tuple[int, int]]]:
    return refereed(tiny_gpt(recipe, attention)[0])


@cache
def traced_full(recipe: str, attention: str) -> Measurement:
    return trace(gpt(recipe, GPTConfig(attention=attention), 32)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_meter_is_the_closed_form_row_by_row(recipe: str, attention: str) -> None:
    measured, _ = measured_tiny(recipe, attention)
    assert_closed_form(measured, tiny_gpt(recipe, attention)[1], recipe)
    assert measured.notes == ()


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_meter_is_within_64_bytes_of_the_allocator(recipe: str, attention: str) -> None:
    measured, events = measured_tiny(recipe, attention)
    assert list(events) == list(Stage)
    for stage in measured.stages:
        alive, most = events[stage.stage]
        assert abs(stage.live.total - alive) <= 64
        assert abs(stage.peak.total - most) <= 64


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_trace_is_the_meter_row_by_row(recipe: str, attention: str) -> None:
    measured, _ = measured_tiny(recipe, attention)
    traced = trace(tiny_gpt(recipe, attention)[0])
    assert traced.saved == measured.saved
    for real, fake in zip(measured.stages, traced.stages, strict=True):
        assert real == fake


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_full_shape_by_closed_form(recipe: str, attention: str) -> None:
    numbers = GPTNumbers(attention=attention)  # type: ignore[arg-type]
    ledger = saved(numbers, recipe)
    assert ledger.total == SAVED[recipe, attention]
    assert all(row.reason for row in ledger)
    figures = [
        live(numbers, recipe, Stage.FORWARD),
        peak(numbers, recipe, Stage.FORWARD),
        peak(numbers, recipe, Stage.BACKWARD),
        live(numbers, recipe, Stage.FORWARD_2),
        peak(numbers, recipe, Stage.FORWARD_2),
        peak(numbers, recipe, Stage.BACKWARD_2),
    ]
    ours = [round((figure.total - MORE_BUFFERS) / MIB, 2) for figure in figures]
    assert ours == list(STAGES[recipe, attention])


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("recipe", ["fp32", "bf16-mixed"])
def test_the_full_shape_by_trace(recipe: str, attention: str) -> None:
    traced = traced_full(recipe, attention)
    assert traced.saved.total == SAVED[recipe, attention]
    assert_closed_form(traced, GPTNumbers(attention=attention), recipe)  # type: ignore[arg-type]


def test_states_logits_and_the_stages_without_activations() -> None:
    numbers = GPTNumbers()
    assert numbers.num_parameters == 3_688_704
    assert states(numbers).total == 59_019_264 + 4 * 38
    assert states(numbers).by_category()[Category.OPTIMIZER] == 4 * numbers.num_tensors
    extra = peak(numbers, "fp32", Stage.FORWARD) - live(numbers, "fp32", Stage.FORWARD)
    assert extra.total == 64 * MIB
    expected = {
        Stage.BUILD: 14.29, Stage.BACKWARD: 28.36, Stage.OPTIMIZER: 56.50, Stage.ZERO_GRAD: 42.43,
        Stage.BACKWARD_2: 56.50,
    }  # fmt: skip
    for stage, figure in expected.items():
        assert round((live(numbers, "fp32", stage).total - MORE_BUFFERS) / MIB, 2) == figure
    most = peak(numbers, "fp32", Stage.OPTIMIZER).total
    assert round((most - MORE_BUFFERS) / MIB, 2) == 60.50


@pytest.mark.parametrize(
    "changes",
    [
        {"num_heads": 1},
        {"context": 1},
        {"context": 1, "num_heads": 1, "num_layers": 1},
        {"context": 5, "width": 24, "num_heads": 3, "ff_width": 7, "vocab_size": 11},
        {"width": 64, "num_heads": 16, "num_layers": 3},
    ],
)
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("recipe", ["fp32", "bf16-mixed"])
def test_the_closed_form_holds_for_odd_shapes(
    recipe: str, attention: str, changes: dict[str, int]
) -> None:
    workload, numbers = tiny_gpt(recipe, attention, **changes)
    assert_closed_form(measure(workload), numbers, recipe, peaks=False)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_emulated_fp16_saves_what_bf16_saves(attention: str) -> None:
    emulated = measure(tiny_gpt("fp16-mixed", attention, "emulated")[0])
    native, _ = measured_tiny("fp16-mixed", attention)
    bf16, _ = measured_tiny("bf16-mixed", attention)
    assert emulated.backend == "emulated"
    assert emulated.saved == native.saved
    as_bf16 = [replace(r, dtype=r.dtype.replace("fp16", "bf16")) for r in emulated.saved]
    assert Ledger(as_bf16) == bf16.saved


def test_the_emulated_peak_has_a_row_of_its_own() -> None:
    emulated, events = refereed(tiny_gpt("bf16-mixed", "materialized", "emulated", vocab_size=2)[0])
    copies = emulated[Stage.FORWARD].peak.where(term="fp32 copies of emulation")
    assert copies.total > 0
    assert set(copies.by_category()) == {Category.TEMPORARIES}
    for stage in emulated.stages:
        alive, most = events[stage.stage]
        assert abs(stage.live.total - alive) <= 64
        assert abs(stage.peak.total - most) <= 64


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_trace_runs_the_emulated_backend_too(attention: str) -> None:
    workload, _ = tiny_gpt("fp16-mixed", attention, "emulated", vocab_size=2)
    measured, traced = measure(workload), trace(workload)
    assert traced.backend == "emulated"
    assert (traced.saved, traced.stages) == (measured.saved, measured.stages)
    assert any(row.term == "fp32 copies of emulation" for s in traced.stages for row in s.peak)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(LedgerError, match="num_layers must be an integer of at least 1, not 0"):
        GPTNumbers(num_layers=0)
    with pytest.raises(LedgerError, match="width 256 must split into 7 even heads"):
        GPTNumbers(num_heads=7)
    with pytest.raises(LedgerError, match="unknown attention 'fussed'. Did you mean 'fused'"):
        GPTNumbers(attention="fussed")  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="heads of width 2 has no closed form"):
        saved(GPTNumbers(width=16), "fp32")
    with pytest.raises(RecipeError, match="unknown recipe"):
        saved(GPTNumbers(), "bf17")
    with pytest.raises(LedgerError, match="no closed form"):
        peak(GPTNumbers(), "fp32", Stage.BUILD)
