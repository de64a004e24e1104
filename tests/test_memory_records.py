"""The records of the novel study's memory, as they are committed."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from floatscope.errors import StudyError
from floatscope.lab.memory.records import ArmRecord, MemoryFile, read_memory
from floatscope.memory import Stage
from floatscope.memory.closed_form import GPTNumbers, saved
from floatscope.memory.closed_form_stages import live, peak
from floatscope.tables import read_parquet

FOLDER = Path(__file__).parent.parent / "results" / "novel" / "memory"
RECIPES = ("fp32", "bf16-mixed", "fp16-mixed", "fp16-mixed-unscaled")
MIB = 1 << 20
STATES = 59_019_264
NAMED = 4 * (2 * 256 * 16 * 4 + 256 * 256) + 2 * 8 * 32 * 256
"""RoPE tables and a mask for each of four layers, ids and targets."""


def record(name: str) -> MemoryFile:
    return read_memory(FOLDER / name)


@pytest.mark.parametrize("attention", ["materialized", "fused"])
def test_four_recipes_stage_by_stage(attention: str) -> None:
    found = record(attention)
    assert tuple(arm.recipe for arm in found.arms) == RECIPES
    assert found.shape["attention"] == attention
    numbers = GPTNumbers(attention=attention)  # type: ignore[arg-type]
    for arm in found.arms:
        assert arm.backend == "native"
        assert arm.unexplained_bytes == 0
        assert arm.saved_bytes == saved(numbers, arm.recipe).total
        for stage, told in zip(Stage, arm.stages, strict=True):
            size = live(numbers, arm.recipe, stage).total
            assert told.live_by_formula == told.live_by_trace == told.live_by_meter == size
            assert told.peak_by_trace == told.peak_by_meter
            if stage is not Stage.BUILD:
                assert told.peak_by_meter == peak(numbers, arm.recipe, stage).total


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_documents_acceptance_line(recipe: str) -> None:
    """States and 0.50 MiB of named rows where activations are gone; those after forward."""
    arm = next(arm for arm in record("materialized").arms if arm.recipe == recipe)
    at = {stage.stage: stage for stage in arm.stages}
    after_build, after_step = at["build"].live_by_meter, at["first optimizer step"].live_by_meter
    assert after_build is not None
    assert after_step is not None
    counters = 4 * 38 + (8 if recipe == "fp16-mixed" else 0)
    assert after_build == STATES // 4 + NAMED
    assert after_step == STATES + NAMED + counters
    assert round(NAMED / MIB, 2) == 0.50
    named = {"buffers": 393_216, "input": 131_072}
    assert {k: at["build"].live_by_category[k] for k in named} == named
    activations = (at["forward"].live_by_meter or 0) - after_build
    assert activations == (arm.saved_bytes or 0) - named["input"] + 4  # the loss itself
    assert arm.terms[0].bytes == (1184 if recipe == "fp32" else 592) * MIB
    assert sum(term.bytes for term in arm.terms) == arm.saved_bytes
    assert all(told.holds for told in arm.acceptance)


def test_emulation_saves_what_native_products_save() -> None:
    (emulated,) = record("emulated").arms
    native = next(a for a in record("materialized").arms if a.recipe == "fp16-mixed")
    assert (emulated.recipe, emulated.backend) == ("fp16-mixed", "emulated")
    assert rows("emulated", emulated) == rows("materialized", native)
    assert [s.live_by_meter for s in emulated.stages] == [s.live_by_meter for s in native.stages]
    # 80 MiB of fp32 copies at one moment of a product; the peaks are the loss's and have none.
    copies = 80 * MIB
    assert [s.engine for s in emulated.stages] == [0, copies, copies, 0, 0, copies, copies]
    assert [s.engine for s in native.stages] == [0] * 7
    assert [s.peak_by_meter for s in emulated.stages] == [s.peak_by_meter for s in native.stages]


@pytest.mark.parametrize("name", ["materialized", "fused", "emulated"])
def test_the_records_say_who_else_was_there_and_what_the_allocator_rounds(name: str) -> None:
    found = record(name)
    assert found.alone is not None
    assert [(step.before, step.after) for step in found.between] == [
        *pairwise(arm.recipe for arm in found.arms)
    ]
    for step in found.between:
        after = next(arm for arm in found.arms if arm.recipe == step.after)
        assert sum(term.bytes for term in step.saved) == after.saved_bytes
    for arm in found.arms:
        assert arm.neighbors is not None
        assert arm.alone is (not arm.neighbors.busy and not arm.neighbors.on_device)
        assert arm.neighbors.load is not None
        assert [(row.name, row.live, row.peak) for row in arm.allocator] == [("rounding", 0, 0)] * 7


def rows(name: str, arm: ArmRecord) -> list[dict[str, Any]]:
    """What the meter found saved, row by row."""
    table = read_parquet(FOLDER / name / "rows.parquet")
    every = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    return [
        row for row in every
        if (row["recipe"], row["witness"], row["moment"]) == (arm.recipe, "meter", "saved")
    ]  # fmt: skip


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    data = json.loads((FOLDER / "emulated" / "memory.json").read_text())
    (tmp_path / "memory.json").write_text(json.dumps(data | {"arms": "none"}))
    with pytest.raises(StudyError, match="damaged at 'arms'. Measure again"):
        read_memory(tmp_path)
    (tmp_path / "memory.json").write_text(json.dumps(data | {"schema": 99}))
    with pytest.raises(StudyError, match="schema 99"):
        read_memory(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_memory(tmp_path / "nowhere")
