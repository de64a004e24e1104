"""The kept records of the lecture: what it claims holds for them, and the documents quote them."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from floatscope.lab.lecture import keep
from floatscope.lab.lecture.demo1_formats import formats
from floatscope.lab.lecture.demo2_swallowed import swallowed
from floatscope.lab.lecture.telling import demo3, demo5, demo5_more
from floatscope.lab.lecture.telling.demo5_names import lost_by_step
from floatscope.lab.lecture.telling.words import percent, signed
from tests.lecture_claims import check_gradients, check_master_weights, check_scaling
from tests.test_lecture_telling import MODULES

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "results" / "novel"
GUIDE = (ROOT / "docs" / "lecture.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def kept() -> dict[int, Any]:
    return {number: keep.read(FOLDER, number).record for number in MODULES}


def test_what_arithmetic_decides_comes_out_again(kept: dict[int, Any]) -> None:
    assert kept[1] == formats()
    assert kept[2] == swallowed()


def test_what_training_decides_is_as_claimed(kept: dict[int, Any]) -> None:
    check_gradients(kept[3])
    check_scaling(kept[4])
    check_master_weights(kept[5])
    assert kept[3].bits < 0.70
    assert sorted(kept[5].paired("bf16")) == [0, 1, 2]
    for number, record in kept.items():
        for sentence in MODULES[number].observations(record):
            assert sentence.holds, sentence.words.en


def test_the_guide_quotes_gradients(kept: dict[int, Any]) -> None:
    small, large = kept[3].batches
    first, last = small.scales[0], small.scales[-1]
    quoted = [
        f"{percent(first.flushed.share, 2)} ({first.flushed.count} of 110 400)",
        f"at batch 256 {percent(large.scales[0].flushed.share, 2)}",
        f"{percent(small.below_normal.share, 2)}; at batch 256 {percent(large.below_normal.share)}",
        f"{percent(first.error, 2)} → {percent(small.scales[1].error, 2)}",
        f"{percent(first.median_error, 2)} → {percent(small.scales[2].median_error, 2)}",
        f"{percent(last.infinite.share, 2)} infinite and {percent(last.nan.share)} NaN",
        f"would give {percent(last.predicted_infinite.share, 2)}",
        f"{kept[3].bits:.3f} bits a character",
    ]
    assert [text for text in quoted if text not in GUIDE] == []


def test_the_guide_quotes_trainings(kept: dict[int, Any]) -> None:
    record = kept[5]
    moments = demo5_more.last_moments(record)
    still = {b: mean(m.unchanged.share for at, _, m in moments if at == b) for b in (0.95, 0.999)}
    paper = {(u.format, u.update): u.matrices.share for u in record.unmoved}
    lost = {arm: [*steps.values()] for arm, steps in lost_by_step(record).items()}
    masters, kahan, chance = (
        signed(mean(record.paired(arm).values()))
        for arm in ("bf16+master", "bf16+kahan", "bf16+sr")
    )
    quoted = [
        f"{percent(paper['bf16', 3e-4])} of the matrices",
        f"{percent(paper['bf16', 3e-5])} of the matrices",
        f"{percent(paper['fp16', 3e-5])} of the matrices",
        f"bf16 {percent(lost['bf16'][0].share, 2)} at step 50, "
        f"{percent(lost['bf16'][-1].share, 2)} at step 300",
        f"{mean(record.paired('bf16').values()):+.3f} (",
        masters, f"Kahan's sum ({kahan})", f"stochastic rounding ({chance}",
        f"{percent(still[0.95], 2)} of its entries do not change at β₂ = 0.95",
        f"and {percent(still[0.999], 2)} at 0.999",
    ]  # fmt: skip
    assert [text for text in quoted if text not in GUIDE] == []


def test_the_readme_quotes_the_third_demonstration(kept: dict[int, Any]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = readme.partition("\n## The lecture")[2].partition("```text\n")[2].partition("```")[0]
    table = next(t for t in demo3.tables(kept[3]) if t.title.en in block)
    rows = [line.split() for line in block.splitlines() if line.startswith("2^")]
    told = [" ".join(cell for cell in row if isinstance(cell, str)).split() for row in table.rows]
    assert len(rows) == 4
    assert all(row in told for row in rows)
    words = [*demo3.observations(kept[3])][1].words.en
    assert words in " ".join(block.partition("2.  ")[2].split())


def test_with_more(kept: dict[int, Any]) -> None:
    assert len(demo5.tables(kept[5])) == 5
    assert len(kept[5].trainings) == 27
