"""The verdict: its rule, its words, its refusals, and what must not change it."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from floatscope.errors import StudyError
from floatscope.lab.statistics import (
    Comparison,
    Interval,
    Verdict,
    decide,
    dunnett,
    paired,
    pooled,
    runs_needed,
    verdict,
)
from floatscope.lab.statistics.verdict import Word

WORDS: tuple[Word, ...] = get_args(Word)
WITHIN = ("equivalent", "different but within the margin")
STRONGER: dict[Word, set[Word]] = {
    "equivalent": {"equivalent"},
    "different but within the margin": {"different but within the margin"},
    "not worse": {"not worse", "equivalent", "different but within the margin"},
    "worse": {"worse", "different but within the margin"},
    "inconclusive": set(WORDS) - {"worse"},
}
"""What a wider margin may turn each word into."""
SWAPPED: dict[Word, set[Word]] = {
    "equivalent": {"equivalent"},
    "different but within the margin": {"different but within the margin"},
    "not worse": {"worse", "inconclusive"},
    "worse": {"not worse"},
    "inconclusive": {"not worse", "inconclusive"},
}
"""What exchanging baseline and candidate may turn each word into."""

BASELINE = [4.5899, 4.6071, 4.6042, 4.5950, 4.5991]
NOISE = [0.0011, -0.0007, 0.0004, -0.0012, 0.0004]


def shifted(by: float, noise: float = 1.0, n: int = 5) -> Comparison:
    """Pairs whose mean difference is `by`; with five, s is 0.00093 · noise."""
    return paired(
        BASELINE[:n], [x + by + noise * e for x, e in zip(BASELINE, NOISE, strict=True)][:n]
    )


def around(center: float, half_95: float, half_90: float) -> tuple[Interval, Interval]:
    return (
        Interval(low=center - half_95, high=center + half_95, confidence=0.95),
        Interval(low=center - half_90, high=center + half_90, confidence=0.90),
    )


@pytest.mark.parametrize(
    ("center", "half_95", "word"),
    [
        (0.0, 0.9, "equivalent"),
        (0.2, 0.9, "equivalent"),  # the 95 % interval leaves the margin, the 90 % one does not
        (0.5, 0.4, "different but within the margin"),
        (-0.5, 0.4, "different but within the margin"),
        (0.9, 0.5, "worse"),
        (3.0, 0.5, "worse"),
        (-0.8, 1.0, "not worse"),
        (-3.0, 0.5, "not worse"),
        (0.5, 1.0, "inconclusive"),
        (0.0, 9.0, "inconclusive"),
        (-1.0, 9.0, "inconclusive"),
    ],
)
def test_the_rule(center: float, half_95: float, word: Word) -> None:
    assert decide(*around(center, half_95, 0.8 * half_95), margin=1.0) == word


def test_limits_do_not_count_as_inside() -> None:
    half = 0.5
    assert decide(*around(0.5, 1.0, half), margin=1.0) == "inconclusive"
    assert decide(*around(-0.5, 1.0, half), margin=1.0) == "not worse"
    assert decide(*around(1.0, 1.0, 0.75), margin=1.0) == "inconclusive"


@pytest.mark.parametrize(
    ("by", "margin", "word", "says"),
    [
        (0.0002, 0.003, "equivalent", "Equivalent within 0.003: the difference in loss is +0.0002"),
        (0.0015, 0.003, "different but within the margin", "excludes zero, and its 90% interval"),
        (-0.0015, 0.003, "different but within the margin", "is -0.0015, its 95% interval -0.002"),
        (0.0035, 0.003, "worse", "Worse: the difference in loss is +0.0035, its 95% interval"),
        (-0.0035, 0.003, "not worse", "Not worse by 0.003 or more: the difference in loss is -0.0"),
        (0.0002, 0.001, "inconclusive", "Inconclusive at a margin of 0.001: the difference"),
    ],
)
def test_verdicts_and_their_sentences(by: float, margin: float, word: Word, says: str) -> None:
    comparison = shifted(by)
    seen = verdict(comparison, margin)
    assert seen.word == word
    assert says in seen.sentence
    assert "(paired, 5 pairs)." in seen.sentence
    assert (seen.difference, seen.margin) == (comparison.difference, margin)
    assert (seen.method, seen.num_baseline, seen.num_candidate) == ("paired", 5, 5)
    assert (seen.interval.confidence, seen.margin_interval.confidence) == (0.95, 0.9)
    assert (seen.needed is not None) == (word == "inconclusive")
    assert (comparison.p_not_worse(margin) < 0.05) == (word not in ("worse", "inconclusive"))
    assert (comparison.p_equivalent(margin) < 0.05) == (word in WITHIN)


def test_inconclusive_says_how_many_runs() -> None:
    comparison = shifted(0.0002)
    seen = verdict(comparison, 0.001)
    assert seen.needed is not None
    given = {"standard_deviation": comparison.standard_deviation, "margin": 0.001}
    assert seen.needed.not_worse == runs_needed("not worse", comparison.design, **given)
    assert seen.needed.equivalent == runs_needed("equivalent", comparison.design, **given)
    assert seen.sentence.endswith(
        "With no true difference and the spread as measured, a new study would show not worse with "
        "7 pairs and equivalent with 9 pairs, in 80% of cases."
    )


def test_better_is_said() -> None:
    assert "to -0.00235 below zero (paired" in verdict(shifted(-0.0035), 0.003).sentence
    unsure = verdict(shifted(-0.0005, 2), 0.0015)
    assert unsure.word == "not worse"
    assert "zero" not in unsure.sentence


def test_enough_runs_and_still_inconclusive() -> None:
    seen = verdict(shifted(0.0009), 0.0016)
    assert seen.word == "inconclusive"
    assert seen.needed is not None
    assert seen.needed.not_worse == 4
    assert seen.sentence.endswith("these runs were that many, so there may well be a difference.")


def test_out_of_reach() -> None:
    seen = verdict(shifted(0.0), 1e-7)
    assert seen.needed is not None
    assert seen.needed.not_worse is None
    assert "not worse with more than 100000 pairs" in seen.sentence


def test_runs_an_arm_without_pairs() -> None:
    a, b, c = BASELINE, [x + 0.001 for x in BASELINE], [x - 0.001 for x in BASELINE[:4]]
    sentence = verdict(pooled(a, b, c), 0.005).sentence
    assert "(pooled, 5 runs against 5 of the baseline)." in sentence
    assert "runs an arm, in 80% of cases." in sentence
    several = dunnett(a, b, c)
    sentence = verdict(several[1], 0.005).sentence
    assert sentence.count("95% interval") == 1
    assert "90% interval" not in sentence
    assert "(Dunnett, 4 runs against 5 of the baseline)." in sentence


@pytest.mark.parametrize("n", [2, 3])
def test_few_runs_are_screening(n: int) -> None:
    seen = verdict(shifted(0.0, n=n), 0.1)
    assert seen.is_screening
    assert seen.sentence.startswith(f"Screening with n = {n}: equivalent within 0.1: the")
    assert not verdict(shifted(0.0, n=4), 0.1).is_screening


@pytest.mark.parametrize("by", [0.0, 0.0015, -0.0015, -0.01])
def test_a_diverged_run_never_wins(by: float) -> None:
    seen = verdict(shifted(by), 0.003, num_diverged=1)
    assert seen.word == "inconclusive"
    assert seen.needed is None
    assert seen.sentence.endswith(
        "Diverged beside them: 1 run of the candidate, which therefore cannot be called as good."
    )


def test_a_diverged_run_hides_nothing_bad() -> None:
    seen = verdict(shifted(0.01), 0.003, num_diverged=2)
    assert seen.word == "worse"
    assert "Diverged beside them: 2 runs of the candidate" in seen.sentence


@pytest.mark.parametrize(
    ("margin", "message"),
    [
        (None, "no margin was stated.*State in the plan, before the first run.*never a multiple"),
        (0.0, "finite number above zero, not 0"),
        (-0.01, "not -0.01"),
        (math.nan, "not nan"),
        (math.inf, "not inf"),
    ],
)
def test_a_verdict_needs_a_margin(margin: float | None, message: str) -> None:
    comparison = shifted(0.0)
    for ask in (verdict, Comparison.p_not_worse, Comparison.p_equivalent):
        with pytest.raises(StudyError, match=message):
            ask(comparison, margin)


def test_a_negative_number_of_diverged_runs() -> None:
    with pytest.raises(StudyError, match="-1 runs cannot have diverged"):
        verdict(shifted(0.0), 0.1, num_diverged=-1)


# --- what must not change it; losses are multiples of 2⁻¹⁰, so shifts and powers of two are exact

PAIRS = st.lists(
    st.tuples(*[st.integers(1024, 1064).map(lambda k: k / 1024)] * 2), min_size=2, max_size=6
)
MARGINS = st.integers(1, 80).map(lambda k: k / 1024)


def compared(pairs: list[tuple[float, float]]) -> Comparison:
    assume(len({b - a for a, b in pairs}) > 1)
    return paired([a for a, _ in pairs], [b for _, b in pairs])


@given(PAIRS, MARGINS, st.integers(-1000, 1000), st.integers(-30, 30))
def test_shift_and_scale(
    pairs: list[tuple[float, float]], margin: float, shift: int, octaves: int
) -> None:
    before, factor = verdict(compared(pairs), margin), 2.0**octaves
    moved = [((a + shift) * factor, (b + shift) * factor) for a, b in pairs]
    after = verdict(compared(moved), margin * factor)
    assert after.word == before.word
    assert after.needed == before.needed
    assert after.interval.low == pytest.approx(before.interval.low * factor, rel=1e-12)


@given(PAIRS, MARGINS)
def test_swap(pairs: list[tuple[float, float]], margin: float) -> None:
    there = verdict(compared(pairs), margin)
    back = verdict(compared([(b, a) for a, b in pairs]), margin)
    assert back.difference == -there.difference
    assert (back.interval.low, back.interval.high) == (-there.interval.high, -there.interval.low)
    assert back.word in SWAPPED[there.word]


@given(PAIRS, MARGINS, st.integers(0, 100), st.integers(0, 2))
def test_wider_margins_never_weaken(
    pairs: list[tuple[float, float]], margin: float, wider: int, num_diverged: int
) -> None:
    comparison = compared(pairs)

    def at(margin: float) -> Verdict:
        return verdict(comparison, margin, num_diverged=num_diverged)

    narrow, wide = at(margin), at(margin + wider / 1024)
    if num_diverged:
        assert narrow.word in ("worse", "inconclusive")
        assert wide.word in ("worse", "inconclusive")
    else:
        assert wide.word in STRONGER[narrow.word]


@given(st.floats(-4, 4), st.floats(0.01, 4), st.floats(0.3, 1), st.floats(0.01, 3))
def test_each_word_says_what_its_intervals_show(
    center: float, half_95: float, ratio: float, margin: float
) -> None:
    """The words partition the plane: read back from the word, every claim is an interval's."""
    zero, of_margin = around(center, half_95, ratio * half_95)
    word = decide(zero, of_margin, margin)
    not_worse = of_margin.high < margin
    equivalent = not_worse and of_margin.low > -margin
    claims = {
        "equivalent": equivalent and not zero.excludes_zero,
        "different but within the margin": equivalent and zero.excludes_zero,
        "not worse": not_worse and not equivalent,
        "worse": zero.low > 0 and not not_worse,
        "inconclusive": zero.low <= 0 and not not_worse,
    }
    assert [name for name, holds in claims.items() if holds] == [word]


def test_words_can_all_be_reached() -> None:
    grid = itertools.product([-0.02, -0.001, 0.0, 0.0015, 0.02], [0.1, 1, 30])
    assert {verdict(shifted(by, noise), 0.002).word for by, noise in grid} == set(WORDS)
