"""What is said of a record follows from its numbers; where a premise fails, the words say so."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from floatscope.cli.lecture_show import wrapped
from floatscope.lab.lecture.demo1_formats import formats
from floatscope.lab.lecture.records import (
    Added,
    Counted,
    Decay,
    Formats,
    GradientBatch,
    Gradients,
    LostAt,
    MasterWeights,
    MomentAt,
    Remedy,
    ScaledStep,
    ScaleRow,
    Scaling,
    ScalingRun,
    Sum,
    Swallowed,
    Trained,
    Unmoved,
)
from floatscope.lab.lecture.telling import demo1, demo2, demo3, demo4, demo5
from floatscope.lab.lecture.telling.words import Sentence, Table, percent, significant

# Records as a lecture might find them, in small.


def good_sums() -> Swallowed:
    def one(form: str, result: float, after: int | None, value: float) -> Sum:
        return Sum(
            format=form, increment=1e-4, result=result, stalled_after=after,
            predicted_after=after, predicted_value=value, trace=((0, 0.0),),
        )  # fmt: skip

    remedies = tuple(
        Remedy(format=form, name=name, result=1.001, spread=0.0, repetitions=1)
        for form in ("fp16", "bf16")
        for name in ("fp32", "kahan", "pairwise", "stochastic")
    )
    return Swallowed(
        increment=1e-4,
        additions=10_000,
        sums=(
            one("fp32", 1.0000535, None, 2048.0),
            one("fp16", 0.25, 2181, 0.25),
            one("bf16", 0.03125, 273, 0.03125),
        ),
        remedies=remedies,
        added=(
            Added(format="fp16", delta=1e-3, result=1.001, half_ulp=2.0**-11),
            Added(format="bf16", delta=1e-3, result=1.0, half_ulp=2.0**-8),
        ),
    )


def scale_row(exponent: int, median: float, **more: Any) -> ScaleRow:
    none, all_ = Counted(count=0, of=100), Counted(count=5, of=100)
    given = {
        "flushed": none, "infinite": none, "nan": none, "predicted_flushed": none,
        "predicted_infinite": none, "error": 0.02 if exponent == 0 else 0.01,
        "error_rounded": 0.01, "median_error_rounded": 0.4 * median, "sign_flips": all_,
    }  # fmt: skip
    return ScaleRow(exponent=exponent, median_error=median, **{**given, **more})


def good_gradients() -> Gradients:
    def batch(size: int, median: float, subnormal: int) -> GradientBatch:
        lost = {
            "infinite": Counted(count=4, of=100), "nan": Counted(count=37, of=100),
            "predicted_infinite": Counted(count=9, of=100), "error": float("nan"),
        }  # fmt: skip
        zeros = {"flushed": Counted(count=3, of=100), "predicted_flushed": Counted(count=1, of=100)}
        rows = [scale_row(0, 0.012, **zeros), *(scale_row(k, 0.01) for k in (4, 8, 12, 16, 20))]
        return GradientBatch(
            batch_size=size,
            loss=1.0,
            median=median,
            below_normal=Counted(count=subnormal, of=100),
            below_smallest=Counted(count=1, of=100),
            to_zero=Counted(count=1, of=100),
            octaves=((-12, 100),),
            scales=(*rows, scale_row(24, float("inf"), **lost)),
        )

    return Gradients(bits=0.68, batches=(batch(32, 7e-4, 6), batch(256, 3e-4, 13)))


def run_of(exponents: list[int], final: int, **more: Any) -> ScalingRun:
    after = [*exponents[1:], final]
    steps = [
        ScaledStep(exponent=k, skipped=n < k, grew=n > k, loss=1.0)
        for k, n in zip(exponents, after, strict=True)
    ]
    return ScalingRun(steps=tuple(steps), final_exponent=final, **{"collapsed": False, **more})


def good_scaling() -> Scaling:
    ordinary = run_of([24, 23, 22, 21, *[20] * 10, 21, *[20] * 3], 20)
    falling = run_of([24 - i for i in range(48)], -24, collapsed=True)
    return Scaling(growth_interval=10, floor_exponent=-24, ordinary=ordinary, overflowing=falling)


def good_training() -> MasterWeights:
    arms = {
        ("fp32", 0.95): 0.0, ("bf16", 0.95): 0.06, ("fp16", 0.95): 0.01,
        ("bf16+master", 0.95): 0.002,
        ("bf16+sr", 0.95): 0.01, ("bf16+kahan", 0.95): 0.003, ("v-bf16", 0.95): 0.001,
        ("fp32", 0.999): 0.17, ("v-bf16", 0.999): 0.172,
    }  # fmt: skip
    still = {0.95: 10, 0.999: 90}
    trainings = tuple(
        Trained(
            arm=arm,
            seed=seed,
            beta2=beta2,
            bits=1.3 + 0.05 * seed + difference + 0.001 * seed * (arm != "fp32"),
            lost=() if arm == "fp32" else (
                *(LostAt(step=step, lost=Counted(count=23 * step, of=10**7))
                  for step in (50, 100, 150, 200, 250)),
                LostAt(step=300, lost=Counted(count=20, of=100)),
            ),
            moments=() if arm != "v-bf16" else (
                MomentAt(step=300, unchanged=Counted(count=still[beta2], of=100),
                         ratio=(0.9, 1.0, 1.1)),
            ),
        )
        for seed in (0, 1, 2)
        for (arm, beta2), difference in arms.items()
    )  # fmt: skip
    shares = {"bf16": (2, 12, 90), "fp16": (0, 1, 40)}
    return MasterWeights(
        median_weight=0.08,
        unmoved=tuple(
            Unmoved(format=form, update=u, matrices=Counted(count=n, of=100),
                    gains=Counted(count=min(n + 50, 100), of=100))
            for form, counts in shares.items()
            for u, n in zip((3e-3, 3e-4, 3e-5), counts, strict=True)
        ),
        steps=300,
        trainings=trainings,
        decay=tuple(
            Decay(format=form, beta2=0.999, steps=3000, exact=0.05, smallest=left, largest=left)
            for form, left in (("fp32", 0.05), ("bf16", 1.0))
        ),
    )  # fmt: skip


MODULES = {1: demo1, 2: demo2, 3: demo3, 4: demo4, 5: demo5}
GOOD = {
    1: formats(), 2: good_sums(), 3: good_gradients(), 4: good_scaling(), 5: good_training(),
}  # fmt: skip


def sentences(number: int, record: Any) -> list[Sentence]:
    return [*MODULES[number].observations(record)]


@pytest.mark.parametrize("number", GOOD)
def test_premises_hold_where_they_hold(number: int) -> None:
    said = sentences(number, GOOD[number])
    assert [s.words.en for s in said if not s.holds] == []
    assert len(said) >= 3


# One way each premise can fail: which sentence it is, and a record.


def _formats(name: str, **changes: Any) -> Formats:
    return Formats(rows=tuple(
        replace(row, **changes) if row.name == name else row for row in formats().rows
    ))  # fmt: skip


def _sum(name: str, **changes: Any) -> Swallowed:
    record = good_sums()
    return replace(record, sums=tuple(
        replace(s, **changes) if s.format == name else s for s in record.sums
    ))  # fmt: skip


def _rows(change: Callable[[ScaleRow], ScaleRow], only: int | None = None) -> Gradients:
    record = good_gradients()
    return replace(record, batches=tuple(
        replace(b, scales=tuple(map(change, b.scales))) if only in (None, b.batch_size) else b
        for b in record.batches
    ))  # fmt: skip


def _median_at(exponent: int, median: float) -> Callable[[ScaleRow], ScaleRow]:
    return lambda row: replace(row, median_error=median) if row.exponent == exponent else row


def _trained(arm: str, bits: float, beta2: float = 0.95) -> MasterWeights:
    """All of an arm's bits raised by as much."""
    record = good_training()
    return replace(record, trainings=tuple(
        replace(t, bits=t.bits + bits) if (t.arm, t.beta2) == (arm, beta2) else t
        for t in record.trainings
    ))  # fmt: skip


def _every(**changes: Any) -> MasterWeights:
    record = good_training()
    return replace(record, trainings=tuple(replace(t, **changes) for t in record.trainings))


def _unmoved(**changes: Any) -> MasterWeights:
    record = good_training()
    return replace(record, unmoved=tuple(replace(u, **changes) for u in record.unmoved))


NONE, HALF, ALL = (Counted(count=n, of=100) for n in (0, 50, 100))
FAILING: list[tuple[int, int, Any]] = [
    (1, 0, _formats("fp16", to_zero="≤ 2^-15")),
    (1, 1, _formats("bf16", exponent_bits=7)),
    (1, 2, _formats("bf16", fraction_bits=11)),
    (1, 0, formats(["e5m2", "e3m1"])),  # the widest is the finest
    (2, 0, _sum("fp16", predicted_after=2000)),
    (2, 1, _sum("bf16", stalled_after=None)),
    (2, 2, _sum("bf16", result=0.5)),
    (2, 3, _sum("fp32", stalled_after=9000)),
    (2, 4, replace(good_sums(), remedies=(
        Remedy(format="fp16", name="kahan", result=0.5, spread=0.0, repetitions=1),))),
    (2, 5, replace(good_sums(), added=(
        Added(format="bf16", delta=1e-3, result=1.01, half_ulp=2.0**-8),))),
    (3, 0, _rows(_median_at(0, 0.0105), 32)),
    (3, 1, _rows(_median_at(0, 0.0105), 256)),
    (3, 2, _rows(_median_at(16, 0.02))),
    (3, 3, _rows(lambda row: replace(row, error=0.01), 32)),
    (3, 4, _rows(lambda row: replace(row, error=0.01), 256)),
    (3, 5, _rows(lambda row: replace(row, nan=NONE))),
    (3, 6, replace(good_gradients(), batches=good_gradients().batches[::-1])),
    (3, 7, _rows(lambda row: replace(row, median_error_rounded=1.0))),
    (3, 8, _rows(lambda row: replace(row, flushed=NONE), 256)),
    (4, 0, replace(good_scaling(), ordinary=run_of([24, *[23] * 10, 24, 23], 23))),
    (4, 1, replace(good_scaling(), ordinary=run_of([24, 23, 22, 21, 20], 20))),
    (4, 1, replace(good_scaling(), growth_interval=9)),
    (4, 2, replace(good_scaling(), ordinary=replace(good_scaling().ordinary, final_exponent=19))),
    (4, 3, replace(good_scaling(), overflowing=good_scaling().ordinary)),
    (5, 0, replace(good_training(), unmoved=tuple(
        replace(u, matrices=ALL if u.format == "fp16" else NONE)
        for u in good_training().unmoved))),
    (5, 1, _unmoved(matrices=ALL, gains=NONE)),
    (5, 2, _every(lost=(LostAt(step=50, lost=HALF), LostAt(step=300, lost=NONE)))),
    (5, 3, _trained("bf16", -0.0615)),
    (5, 4, _trained("bf16+master", 0.04)),
    (5, 5, _trained("fp16", 0.06)),
    (5, 6, _trained("bf16", 1.0)),
    (5, 7, _trained("bf16+sr", 0.06)),
    (5, 8, _every(moments=(MomentAt(step=300, unchanged=NONE, ratio=(1.0, 1.0, 1.0)),))),
    (5, 9, replace(good_training(), decay=tuple(
        replace(d, smallest=0.3) for d in good_training().decay))),
    (5, 10, _trained("v-bf16", 0.5, 0.999)),
]  # fmt: skip


@pytest.mark.parametrize("case", FAILING, ids=lambda case: f"{case[0]}.{case[1] + 1}")
def test_a_premise_that_fails_is_said(case: tuple[int, int, Any]) -> None:
    number, index, record = case
    usual, said = sentences(number, GOOD[number]), sentences(number, record)
    assert not said[index].holds
    assert said[index].words.en != usual[index].words.en
    assert said[index].words.zh != usual[index].words.zh


def test_every_premise_is_made_to_fail() -> None:
    for number, record in GOOD.items():
        failing = {index for n, index, _ in FAILING if n == number}
        assert failing == set(range(len(sentences(number, record))))


def test_events_are_told_with_their_interval() -> None:
    events, _ = demo4.tables(replace(good_scaling(), growth_interval=7))
    words = [row[-1] for row in events.rows]
    assert [w.en for w in words if not isinstance(w, str)][-2:] == [
        "7 clean steps: doubled", "infinite or NaN: skipped, halved",
    ]  # fmt: skip
    assert len(words) == 6


def test_without_more_nothing_is_said_of_it() -> None:
    record = replace(good_training(), decay=(), trainings=good_training().trainings[:4])
    assert len(sentences(5, record)) == 7
    assert len(demo5.tables(record)) == 3
    assert len(demo5.tables(good_training())) == 5


@pytest.mark.parametrize("number", GOOD)
def test_both_languages_say_the_same_numbers(number: int) -> None:
    for sentence in sentences(number, GOOD[number]):
        english, chinese = (_numbers(text) for text in (sentence.words.en, sentence.words.zh))
        missing = [n for n in chinese if n not in english]
        assert not missing, f"{missing}: {sentence.words}"


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text.replace(" 000", "000"))


@pytest.mark.parametrize("number", GOOD)
def test_told(number: int) -> None:
    told = MODULES[number].TOLD
    for words in (told.title, told.why, told.patch, told.caption):
        assert words.en
        assert re.search("[\u4e00-\u9fff]", words.zh)
    assert told.calls
    assert all(sentence.source for sentence in told.history)


@pytest.mark.parametrize("number", GOOD)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_tables_are_rectangles_in_eighty_columns(number: int, language: Any) -> None:
    tables: tuple[Table, ...] = MODULES[number].tables(GOOD[number])
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.header)}
        columns = zip(table.header, *table.rows, strict=True)
        widths = [
            max(
                cell_len(line)
                for cell in column
                for line in (cell if isinstance(cell, str) else cell.of(language)).split("\n")
            )
            for column in columns
        ]
        assert sum(widths) + 2 * (len(widths) - 1) <= 80


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0, "0 %"), (1.0, "100 %"), (0.1234567, "12.3 %"), (9e-6, "0.000900 %"),
     (1e-9, "1.00e-07 %"),
     (float("nan"), "NaN"), (float("inf"), "inf"), (0.9999, "100.0 %"), (12.3, "1230 %")],
)  # fmt: skip
def test_percent(share: float, shown: str) -> None:
    assert percent(share) == shown


def test_significant() -> None:
    shown = [significant(x) for x in (1.234, 0.001234, 123.4, 0.0)]
    assert shown == ["1.23", "0.00123", "123", "0"]


def test_wrapping() -> None:
    text = "大模型用 16 位训练：显存省一半（loss scaling），有的设备还快一倍以上。16 位能表示什么"
    for width in (20, 33, 80):
        lines = wrapped(text, width)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert all(cell_len(line) <= width for line in lines)
        assert not any(line.startswith(("，", "。", "：", "）")) for line in lines)
        assert not any(line.endswith("（") for line in lines)
    assert wrapped("It lost 63.4 % of them", 13) == ["It lost", "63.4 % of", "them"]
    assert wrapped("Large models train in 16 bits", 12) == ["Large models", "train in 16", "bits"]
