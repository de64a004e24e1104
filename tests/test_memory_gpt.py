"""The laboratory's GPT: closed form, trace, meter and allocator, to the byte."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from floatscope.errors import LedgerError, RecipeError
from floatscope.lab.gpt_config import GPTConfig
from floatscope.memory import Category, Ledger, Measurement, Stage, measure
from floatscope.memory.closed_form import GPTNumbers, saved
from floatscope.memory.closed_form_stages import live, peak, states
from floatscope.memory.trace import trace
from tests.memory_workloads import gpt, refereed, tiny_gpt

RECIPES = ("fp32", "bf16-mixed", "fp16-mixed", "bf16-pure", "bf16-master")
ATTENTIONS = ("materialized", "fused")
CASES = [(recipe, attention) for recipe in RECIPES for attention in ATTENTIONS]

# Bytes saved for backward at 32 x 256 tokens, measured when the design was made.
SAVED = {
    ("fp32", "materialized"): 1_057_390_596,
    ("fp32", "fused"): 823_558_148,
    ("bf16-mixed", "materialized"): 695_795_716,
    ("bf16-mixed", "fused"): 579_403_780,
    ("fp16-mixed", "materialized"): 695_795_716,
    ("fp16-mixed", "fused"): 579_403_780,
    ("bf16-pure", "materialized"): 604_405_762,
    ("bf16-pure", "fused"): 488_013_826,
    ("bf16-master", "materialized"): 604_405_762,
    ("bf16-master", "fused"): 488_013_826,
}

# At 32 x 256 tokens: bytes alive after each of the seven stages, and at the peaks of all but the
# first.
STAGES = {
    ("fp32", "materialized"): (
        15_279_104, 1_072_538_632, 30_033_920, 59_543_704, 44_788_888, 1_102_048_416, 59_543_704,
        1_139_647_496, 1_206_756_360, 63_738_008, 59_543_704, 1_169_157_280, 1_236_266_144,
    ),
    ("fp32", "fused"): (
        15_279_104, 838_706_184, 30_033_920, 59_543_704, 44_788_888, 868_215_968, 59_543_704,
        905_815_048, 972_923_912, 63_738_008, 59_543_704, 935_324_832, 1_002_433_696,
    ),
    ("bf16-mixed", "materialized"): (
        15_279_104, 710_943_752, 30_033_920, 59_543_704, 44_788_888, 740_453_536, 59_543_704,
        811_607_048, 845_161_480, 63_738_008, 59_543_704, 841_116_832, 874_671_264,
    ),
    ("bf16-mixed", "fused"): (
        15_279_104, 594_551_816, 30_033_920, 59_543_704, 44_788_888, 624_061_600, 59_543_704,
        695_215_112, 728_769_544, 63_738_008, 59_543_704, 724_724_896, 758_279_328,
    ),
    ("fp16-mixed", "materialized"): (
        15_279_104, 710_943_752, 30_033_928, 59_543_712, 44_788_896, 740_453_544, 59_543_712,
        811_607_048, 845_161_492, 63_738_020, 59_543_712, 841_116_840, 874_671_276,
    ),
    ("fp16-mixed", "fused"): (
        15_279_104, 594_551_816, 30_033_928, 59_543_712, 44_788_896, 624_061_608, 59_543_712,
        695_215_112, 728_769_556, 63_738_020, 59_543_712, 724_724_904, 758_279_340,
    ),
    ("bf16-pure", "materialized"): (
        7_836_160, 612_110_852, 15_213_568, 29_968_536, 22_591_128, 626_865_820, 29_968_536,
        645_665_284, 679_219_716, 32_065_688, 29_968_536, 660_420_252, 693_974_684,
    ),
    ("bf16-pure", "fused"): (
        7_836_160, 495_718_916, 15_213_568, 29_968_536, 22_591_128, 510_473_884, 29_968_536,
        529_273_348, 562_827_780, 32_065_688, 29_968_536, 544_028_316, 577_582_748,
    ),
    ("bf16-master", "materialized"): (
        22_590_976, 626_865_668, 29_968_384, 52_100_760, 52_100_760, 656_375_452, 59_478_168,
        660_420_100, 693_974_532, 71_049_880, 52_100_760, 689_929_884, 723_484_316,
    ),
    ("bf16-master", "fused"): (
        22_590_976, 510_473_732, 29_968_384, 52_100_760, 52_100_760, 539_983_516, 59_478_168,
        544_028_164, 577_582_596, 71_049_880, 52_100_760, 573_537_948, 607_092_380,
    ),
}  # fmt: skip

# The design's own table of a model with one set of RoPE tables and one mask, where ours has one a
# layer. MiB after build, forward, backward, first step, zero_grad and second forward, and the peaks
# of forward, backward, first step, second forward and second backward.
DESIGN = {
    ("fp32", "materialized"): (14.29, 1022.57, 28.36, 56.50, 42.43, 1050.71,
                               1086.57, 1150.57, 60.50, 1114.71, 1178.71),
    ("fp32", "fused"): (14.29, 799.57, 28.36, 56.50, 42.43, 827.71,
                        863.57, 927.57, 60.50, 891.71, 955.71),
    ("bf16-mixed", "materialized"): (14.29, 677.73, 28.36, 56.50, 42.43, 705.87,
                                     773.73, 805.73, 60.50, 801.87, 833.87),
    ("bf16-mixed", "fused"): (14.29, 566.73, 28.36, 56.50, 42.43, 594.87,
                              662.73, 694.73, 60.50, 690.87, 722.87),
    ("fp16-mixed", "materialized"): (14.29, 677.73, 28.36, 56.50, 42.43, 705.87,
                                     773.73, 805.73, 60.50, 801.87, 833.87),
    ("fp16-mixed", "fused"): (14.29, 566.73, 28.36, 56.50, 42.43, 594.87,
                              662.73, 694.73, 60.50, 690.87, 722.87),
    ("bf16-pure", "materialized"): (7.24, 583.52, 14.27, 28.35, 21.31, 597.59,
                                    615.52, 647.52, 30.35, 629.59, 661.59),
    ("bf16-pure", "fused"): (7.24, 472.52, 14.27, 28.35, 21.31, 486.59,
                             504.52, 536.52, 30.35, 518.59, 550.59),
    ("bf16-master", "materialized"): (21.31, 597.59, 28.35, 49.45, 49.45, 625.73,
                                      629.59, 661.59, 67.52, 657.73, 689.73),
    ("bf16-master", "fused"): (21.31, 486.59, 28.35, 49.45, 49.45, 514.73,
                               518.59, 550.59, 67.52, 546.73, 578.73),
}  # fmt: skip
MIB = 1 << 20


def more_buffers(recipe: str) -> int:
    """Bytes of three layers' RoPE tables and masks."""
    return 3 * (2 * 256 * 16 * (2 if recipe in ("bf16-pure", "bf16-master") else 4) + 256 * 256)


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


@pytest.mark.parametrize(("recipe", "attention"), CASES)
def test_meter_is_the_closed_form_row_by_row(recipe: str, attention: str) -> None:
    measured, _ = measured_tiny(recipe, attention)
    assert_closed_form(measured, tiny_gpt(recipe, attention)[1], recipe)
    assert len(measured.notes) == (recipe in ("bf16-pure", "bf16-master"))


def assert_within_64_bytes(measured: Measurement, events: dict[str, tuple[int, int]]) -> None:
    assert list(events) == list(Stage)
    for stage in measured.stages:
        alive, most = events[stage.stage]
        assert abs(stage.live.total - alive) <= 64
        assert abs(stage.peak.total - most) <= 64


@pytest.mark.parametrize(("recipe", "attention"), CASES)
def test_meter_is_within_64_bytes_of_the_allocator(recipe: str, attention: str) -> None:
    assert_within_64_bytes(*measured_tiny(recipe, attention))


@pytest.mark.parametrize(("recipe", "attention"), CASES)
def test_trace_is_the_meter_row_by_row(recipe: str, attention: str) -> None:
    measured, _ = measured_tiny(recipe, attention)
    traced = trace(tiny_gpt(recipe, attention)[0])
    assert traced.saved == measured.saved
    for real, fake in zip(measured.stages, traced.stages, strict=True):
        assert real == fake


def figures(
    measured: Measurement | None, numbers: GPTNumbers, recipe: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes alive after each stage, and at the peaks of all but the first; None: by formula."""
    if measured is None:
        lives = [live(numbers, recipe, stage).total for stage in Stage]
        return tuple(lives), tuple(peak(numbers, recipe, s).total for s in list(Stage)[1:])
    peaks = [stage.peak.total for stage in measured.stages[1:]]
    return tuple(stage.live.total for stage in measured.stages), tuple(peaks)


@pytest.mark.parametrize(("recipe", "attention"), CASES)
def test_the_full_shape_by_closed_form(recipe: str, attention: str) -> None:
    numbers = GPTNumbers(attention=attention)  # type: ignore[arg-type]
    ledger = saved(numbers, recipe)
    assert ledger.total == SAVED[recipe, attention]
    assert all(row.reason for row in ledger)
    lives, peaks = figures(None, numbers, recipe)
    assert lives + peaks == STAGES[recipe, attention]
    told = (*lives[:6], *peaks[:3], *peaks[4:])
    ours = tuple(round((size - more_buffers(recipe)) / MIB, 2) for size in told)
    assert ours == DESIGN[recipe, attention]


@pytest.mark.parametrize(("recipe", "attention"), [c for c in CASES if c[0] != "fp16-mixed"])
def test_the_full_shape_by_trace(recipe: str, attention: str) -> None:
    traced = traced_full(recipe, attention)
    assert traced.saved.total == SAVED[recipe, attention]
    numbers = GPTNumbers(attention=attention)  # type: ignore[arg-type]
    lives, peaks = figures(traced, numbers, recipe)
    assert lives + peaks == STAGES[recipe, attention]
    assert_closed_form(traced, numbers, recipe)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("recipe", "attention"), CASES)
def test_the_full_shape_by_meter_and_allocator(recipe: str, attention: str) -> None:
    workload, numbers = gpt(recipe, GPTConfig(attention=attention), 32)  # type: ignore[arg-type]
    measured, events = refereed(workload)
    assert_within_64_bytes(measured, events)
    lives, peaks = figures(measured, numbers, recipe)
    assert lives + peaks == STAGES[recipe, attention]
    assert_closed_form(measured, numbers, recipe)


def test_states_and_logits() -> None:
    numbers = GPTNumbers()
    assert numbers.num_parameters == 3_688_704
    assert states(numbers).total == 59_019_264 + 4 * 38
    assert states(numbers).by_category()[Category.OPTIMIZER] == 4 * numbers.num_tensors
    assert states(numbers, "bf16-pure").total == 8 * 3_688_704 + 4 * 38
    assert states(numbers, "bf16-master").total == 59_019_264 + 4 * 38
    extra = peak(numbers, "fp32", Stage.FORWARD) - live(numbers, "fp32", Stage.FORWARD)
    assert extra.total == 64 * MIB


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
@pytest.mark.parametrize("recipe", ["fp32", "bf16-mixed", "bf16-pure"])
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
    with pytest.raises(LedgerError, match="bf16-kahan has no closed form; measure it"):
        saved(GPTNumbers(), "bf16-kahan")
    with pytest.raises(LedgerError, match="stages of fp8-current have no closed form"):
        live(GPTNumbers(), "fp8-current", Stage.BUILD)
