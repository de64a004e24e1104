"""Simulated error rates of the verdicts: normal losses, 10 000 studies a case, fixed seeds.

A rate of 5 % may come out three binomial standard deviations higher, at 5.65 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from floatscope.lab.statistics import Comparison, decide, dunnett, paired, pooled, welch
from floatscope.lab.statistics.comparison import PAIRED, Design
from floatscope.lab.statistics.verdict import Word

NUM = 10_000
FIVE = 0.05 + 3 * math.sqrt(0.05 * 0.95 / NUM)
TWO_AND_A_HALF = 0.025 + 3 * math.sqrt(0.025 * 0.975 / NUM)
WITHIN = ("equivalent", "different but within the margin")
FAVORABLE = ("not worse", *WITHIN)
SIZES = [3, 5, 8]

Losses = NDArray[np.float64]  # studies × runs


def seed(*numbers: int) -> np.random.Generator:
    return np.random.default_rng(numbers)


def comparisons(method: str, *arms: Losses) -> Iterator[Comparison]:
    """What `paired`, `welch` and `pooled` make of each study, with means and deviations at once."""
    a, b = arms[:2]
    num_a, num_b = a.shape[1], b.shape[1]
    n = np.array([x.shape[1] for x in arms])
    s2 = np.array([x.var(1, ddof=1) for x in arms])
    difference = b.mean(1) - a.mean(1)
    design = Design(method="pooled", variance_factor=2, df_factor=len(arms))
    if method == "paired":
        design = PAIRED
        s2_d = (b - a).var(1, ddof=1)
        error, df, s = np.sqrt(s2_d / num_a), np.full(len(a), num_a - 1.0), np.sqrt(s2_d)
    elif method == "welch":
        parts = s2 / n[:, None]
        error, s = np.sqrt(parts.sum(0)), np.sqrt(s2.mean(0))
        df = parts.sum(0) ** 2 / (parts**2 / (n - 1)[:, None]).sum(0)
    else:
        s = np.sqrt((s2 * (n - 1)[:, None]).sum(0) / (n - 1).sum())
        error, df = s * math.sqrt(1 / num_a + 1 / num_b), np.full(len(a), (n - 1.0).sum())
    for row in zip(difference.tolist(), error.tolist(), df.tolist(), s.tolist(), strict=True):
        yield Comparison(
            design=design,
            difference=row[0],
            standard_error=row[1],
            df=row[2],
            standard_deviation=row[3],
            num_baseline=num_a,
            num_candidate=num_b,
        )


def draws(n: int, num_arms: int, correlation: float = 0.0) -> list[Losses]:
    """Standard normal losses; the correlation is between the arms, run by run."""
    rng = seed(n, num_arms, round(100 * correlation))
    shared = math.sqrt(correlation) * rng.normal(size=(NUM, n))
    own = math.sqrt(1 - correlation)
    return [shared + own * rng.normal(size=(NUM, n)) for _ in range(num_arms)]


def rates(method: str, arms: list[Losses], margin: float) -> dict[Word, float]:
    words: Counter[Word] = Counter(
        decide(c.interval(), c.margin_interval(), margin) for c in comparisons(method, *arms)
    )
    return {word: count / NUM for word, count in words.items()}


CASES = [("paired", 2, 0.5), ("paired", 2, 0.0), ("welch", 2, 0.0), ("pooled", 4, 0.0)]


@pytest.mark.parametrize(("method", "num_arms", "correlation"), CASES)
def test_the_shortcut_is_the_library(method: str, num_arms: int, correlation: float) -> None:
    function = {"paired": paired, "welch": welch, "pooled": pooled}[method]
    arms = [x[:200] for x in draws(5, num_arms, correlation)]
    checked = 0
    for k, short in enumerate(comparisons(method, *arms)):
        given = [x[k].tolist() for x in arms]
        s = [np.std(x, ddof=1) for x in given]
        if method == "pooled" and max(s) / min(s) >= 3:
            continue
        full, checked = function(*given), checked + 1
        for name in ("difference", "standard_error", "df", "standard_deviation"):
            assert getattr(full, name) == pytest.approx(getattr(short, name), rel=1e-9), name
    assert checked > 100


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("method", "num_arms", "correlation"), CASES)
def test_false_worse_and_false_different(
    method: str, num_arms: int, correlation: float, n: int
) -> None:
    """Arms that do not differ. A margin of 3 σ leaves room for "different", one of 0.5 does not."""
    arms = draws(n, num_arms, correlation)
    for margin in (0.5, 3.0):
        found = rates(method, arms, margin)
        worse = found.get("worse", 0.0)
        assert worse <= TWO_AND_A_HALF
        assert worse + found.get("different but within the margin", 0.0) <= FIVE


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("method", "num_arms", "correlation"), CASES)
def test_false_claims_at_the_margin(method: str, num_arms: int, correlation: float, n: int) -> None:
    """Candidates worse by just the margin, of 0.7 σ and 5 σ, and better by just the margin."""
    baseline, candidate, *others = draws(n, num_arms, correlation)
    for margin in (0.7, 5.0):
        found = rates(method, [baseline, candidate + margin, *others], margin)
        assert sum(found.get(word, 0.0) for word in FAVORABLE) <= FIVE
    found = rates(method, [baseline, candidate - margin, *others], margin)
    assert sum(found.get(word, 0.0) for word in WITHIN) <= FIVE


def test_welch_at_three_against_ten_is_liberal() -> None:
    """A limit that `welch` states: 6.4 to 6.9 %, where 5 are meant."""
    a, b = seed(10).normal(size=(NUM, 10)), seed(3).normal(size=(NUM, 3))
    missed = sum(c.interval().excludes_zero for c in comparisons("welch", a, b)) / NUM
    assert missed == pytest.approx(0.064, abs=3 * math.sqrt(0.064 * 0.936 / NUM))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("shifts", [(0.0, 0.0, 0.0), (2.0, 2.0, 2.0), (2.0, -2.0, 2.0)])
def test_dunnett_is_wrong_about_no_arm(n: int, shifts: tuple[float, ...]) -> None:
    """Three arms without a difference, or each off by just the margin: any false word counts."""
    rows = [[float(k + j) for k in range(n)] for j in range(4)]
    design = dunnett(*rows)[0].design
    control, *arms = draws(n, 4)
    wrong = np.zeros(NUM, bool)
    for k, shift in enumerate(shifts):
        false = FAVORABLE if shift > 0 else WITHIN if shift < 0 else ("worse", WITHIN[1])
        others = arms[:k] + arms[k + 1 :]
        for study, single in enumerate(comparisons("pooled", control, arms[k] + shift, *others)):
            c = replace(single, design=design)
            wrong[study] |= decide(c.interval(), c.margin_interval(), 2.0) in false
    assert wrong.mean() <= FIVE
