"""Floors and comparisons: against scipy, statsmodels and published examples; all refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW, ttost_ind, ttost_paired

from floatscope.errors import StudyError
from floatscope.lab import statistics as ours
from tests.test_startup import loaded

SIZES = [(2, 2), (3, 3), (3, 8), (10, 5)]


def arms(seed: int, *sizes: int) -> list[list[float]]:
    """Losses near 3.28 with a spread of 0.002 and a shift of 0.001 from arm to arm."""
    rng = np.random.default_rng(seed)
    return [list(3.28 + 0.001 * k + 0.002 * rng.normal(size=n)) for k, n in enumerate(sizes)]


def sample_with(mean: float, s: float, n: int) -> list[float]:
    """Any n numbers with exactly this mean and standard deviation."""
    x = np.arange(n) - (n - 1) / 2
    return list(mean + s * x / x.std(ddof=1))


def test_importing_it_loads_neither_numpy_nor_scipy() -> None:
    assert not loaded("import floatscope.lab.statistics") & {"numpy", "scipy", "torch"}


# --- the floor


@pytest.mark.parametrize("n", [2, 3, 10, 80])
def test_noise_floor_against_scipy(n: int) -> None:
    (x,) = arms(n, n)
    floor = ours.noise_floor(x)
    assert (floor.num_runs, floor.minimum, floor.maximum) == (n, min(x), max(x))
    assert floor.mean == pytest.approx(np.mean(x), rel=1e-14)
    assert floor.standard_deviation == pytest.approx(np.std(x, ddof=1), rel=1e-9)
    assert floor.range == max(x) - min(x)
    variances = (n - 1) * np.var(x, ddof=1) / stats.chi2(n - 1).ppf([0.975, 0.025])
    limits = floor.standard_deviation_limits
    assert [limits.low, limits.high] == pytest.approx(np.sqrt(variances), rel=1e-9)


@pytest.mark.parametrize("num_new", [1, 2, 7])
def test_prediction_interval_is_the_t_interval_of_a_difference(num_new: int) -> None:
    (x,) = arms(3, 6)
    interval = ours.prediction_interval(x, num_new=num_new, confidence=0.9)
    error = np.std(x, ddof=1) * math.sqrt(1 / 6 + 1 / num_new)
    expected = stats.t(5, np.mean(x), error).interval(0.9)
    assert [interval.low, interval.high] == pytest.approx(expected, rel=1e-12)


def test_prediction_interval_of_a_textbook() -> None:
    """Montgomery and Runger, Applied Statistics and Probability for Engineers: the load at which a
    U-700 alloy's adhesion fails, 22 specimens, prediction for the 23rd."""
    load = """19.8 10.1 14.9 7.5 15.4 15.4 15.4 18.5 7.9 12.7 11.9 11.4 11.4 14.1 17.6 16.7 15.8
    19.5 8.8 13.6 11.9 11.4"""
    values = [float(x) for x in load.split()]
    interval = ours.prediction_interval(values)
    assert ours.noise_floor(values).mean == pytest.approx(13.71, abs=0.005)
    assert (interval.low, interval.high) == pytest.approx((6.16, 21.26), abs=0.01)


def test_prediction_intervals_cover_one_new_run() -> None:
    rng, inside = np.random.default_rng(0), 0
    draws = rng.normal(size=(4000, 5)).tolist()
    for *baseline, new in draws:
        inside += ours.screening(new, baseline).is_inside
    assert abs(inside / 4000 - 0.95) < 3 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize(
    ("loss", "place"), [(3.2790, "inside"), (3.2690, "below"), (3.2999, "above")]
)
def test_one_run_is_screened_and_gets_no_verdict(loss: float, place: str) -> None:
    seen = ours.screening(loss, [3.2791, 3.2772, 3.2810, 3.2795])
    assert seen.is_inside == (place == "inside")
    assert seen.sentence.startswith(f"Screening, no verdict: this one run ended at {loss:.5g}, ")
    assert f"{place} the 95% interval for one more run" in seen.sentence
    assert seen.sentence.endswith("(n = 4).")


# --- comparisons


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_paired_against_scipy_and_statsmodels(n: int) -> None:
    a, b = arms(n, n, n)
    comparison = ours.paired(a, b)
    expected: Any = stats.ttest_rel(b, a)
    assert comparison.df == expected.df
    assert comparison.difference / comparison.standard_error == pytest.approx(expected.statistic)
    assert comparison.p_different() == pytest.approx(expected.pvalue, rel=1e-9)
    for confidence in (0.9, 0.95):
        interval, theirs = comparison.interval(confidence), expected.confidence_interval(confidence)
        assert (interval.low, interval.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9)
    for margin in (0.0005, 0.002, 0.01):
        p, _, (_, p_upper, _) = ttost_paired(np.array(b), np.array(a), -margin, margin)
        assert comparison.p_equivalent(margin) == pytest.approx(p, rel=1e-9)
        assert comparison.p_not_worse(margin) == pytest.approx(p_upper, rel=1e-9)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("method", ["welch", "pooled"])
def test_unpaired_against_scipy_and_statsmodels(sizes: tuple[int, int], method: str) -> None:
    a, b = arms(sum(sizes), *sizes)
    comparison = getattr(ours, method)(a, b)
    equal = method == "pooled"
    expected: Any = stats.ttest_ind(b, a, equal_var=equal)
    assert comparison.df == pytest.approx(expected.df, rel=1e-9)
    assert comparison.p_different() == pytest.approx(expected.pvalue, rel=1e-9)
    interval, theirs = comparison.interval(), expected.confidence_interval(0.95)
    assert (interval.low, interval.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9)
    usevar: Any = "pooled" if equal else "unequal"
    means = CompareMeans(DescrStatsW(b), DescrStatsW(a)).tconfint_diff(usevar=usevar)
    assert (interval.low, interval.high) == pytest.approx(means, rel=1e-9)
    p, *_ = ttost_ind(np.array(b), np.array(a), -0.003, 0.003, usevar=usevar)
    assert comparison.p_equivalent(0.003) == pytest.approx(p, rel=1e-9)


def test_pooling_over_further_arms_is_the_error_of_an_analysis_of_variance() -> None:
    a, b, c, d = arms(5, 3, 4, 3, 6)
    comparison = ours.pooled(a, b, c, d)
    within = sum((len(x) - 1) * np.var(x, ddof=1) for x in (a, b, c, d))
    assert comparison.df == 2 + 3 + 2 + 5
    assert comparison.standard_deviation == pytest.approx(math.sqrt(within / 12))
    two: Any = stats.f_oneway(a, b, c, d)
    between = np.concatenate([a, b, c, d]).var() * 16 - within
    assert two.statistic == pytest.approx(between / 3 / comparison.standard_deviation**2)
    error = comparison.standard_deviation * math.sqrt(1 / 3 + 1 / 4)
    assert comparison.standard_error == pytest.approx(error)


SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)


@pytest.mark.parametrize(
    ("compare", "t", "df", "p", "low", "high"),
    [
        (ours.paired, 4.0621, 9, 0.002833, 0.7001142, 2.4598858),
        (ours.welch, 1.8608, 17.776, 0.07939, -0.2054832, 3.3654832),
    ],
)
def test_students_sleep_data(
    compare: Callable[..., ours.Comparison], t: float, df: float, p: float, low: float, high: float
) -> None:
    """Student 1908; the numbers are those of R's `t.test` on its `sleep`, with the sign turned."""
    comparison = compare(*SLEEP)
    interval = comparison.interval()
    assert comparison.difference / comparison.standard_error == pytest.approx(t, abs=5e-5)
    assert comparison.df == pytest.approx(df, abs=5e-4)
    assert comparison.p_different() == pytest.approx(p, abs=5e-6)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-8)


def test_equivalence_of_a_replication() -> None:
    """Lakens 2017: Moery and Calin-Jageman's replication of Eskine; t(182) = -2.69, p = 0.004,
    pooled standard deviation 0.894 and bounds of ±0.384."""
    comparison = ours.pooled(sample_with(5.22, 0.83, 89), sample_with(5.25, 0.95, 95))
    assert comparison.df == 182
    assert comparison.standard_deviation == pytest.approx(0.894, abs=5e-4)
    t = (comparison.difference - 0.384) / comparison.standard_error
    assert t == pytest.approx(-2.69, abs=0.01)
    assert comparison.p_equivalent(0.384) == pytest.approx(0.004, abs=5e-4)
    assert ours.verdict(comparison, 0.384).word == "equivalent"


def test_equivalence_of_a_bfloat16_recipe() -> None:
    """modded-nanogpt, pull requests 122 (n = 17) and 123 (n = 12), from their rounded means."""
    comparison = ours.welch(sample_with(3.27888, 0.0016, 17), sample_with(3.2780, 0.0014, 12))
    interval = comparison.margin_interval()
    assert (interval.low, interval.high) == pytest.approx((-0.0018, 0.0001), abs=5e-5)
    assert comparison.p_different() == pytest.approx(0.13, abs=0.005)
    assert comparison.p_equivalent(0.0033) == pytest.approx(0.0001, abs=5e-5)
    assert comparison.p_equivalent(0.0020) == pytest.approx(0.027, abs=0.0015)
    assert ours.verdict(comparison, 0.0033).word == "equivalent"


@pytest.mark.parametrize("n", [3, 10])
@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.99])
def test_whether_pairing_paid(n: int, correlation: float) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.multivariate_normal([3, 3], [[1, correlation], [correlation, 1]], n).T.tolist()
    seen = ours.pairing(x, y)
    assert seen.correlation == pytest.approx(np.corrcoef(x, y)[0, 1])
    s2, d2 = np.var(x, ddof=1) + np.var(y, ddof=1), np.var(np.subtract(y, x), ddof=1)
    assert seen.variance_ratio == pytest.approx(d2 / s2)
    widths = [f(x, y).interval() for f in (ours.paired, ours.pooled)]
    width_ratio = (widths[0].high - widths[0].low) / (widths[1].high - widths[1].low)
    assert seen.width_ratio == pytest.approx(width_ratio)
    if correlation == 0.99:
        assert seen.width_ratio < 1


# --- refusals

GOOD = [3.1, 3.2, 3.3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ours.noise_floor([3.1]), "finished runs: 1, and a spread needs at least 2"),
        (lambda: ours.noise_floor([]), "finished runs: 0.*screening"),
        (lambda: ours.noise_floor([3.1, 3.1, 3.1]), "all 3 values equal 3.1.*copied"),
        (lambda: ours.noise_floor([0.0, 0.0]), "no spread to judge by"),
        (lambda: ours.noise_floor(GOOD, confidence=95), "confidence must lie between 0 and 1"),
        (lambda: ours.prediction_interval(GOOD, num_new=0), "at least one new run"),
        (lambda: ours.screening(math.nan, GOOD), "run 1 of 1 ended at nan.*divergence_rate"),
        (lambda: ours.screening(3.0, [3.1]), "at least 2"),
        (lambda: ours.paired(GOOD, [3.1, math.inf, 3.0]), "candidate: run 2 of 3 ended at inf"),
        (lambda: ours.welch([3.1, math.nan], GOOD), "baseline: run 2 of 2 ended at nan"),
        (lambda: ours.welch([3.1, -1e200], GOOD), "ended at -1e\\+200"),
        (lambda: ours.paired(GOOD, GOOD[:2]), "3 baseline and 2 candidate runs make no pairs.*wel"),
        (lambda: ours.paired([3.1], [3.2]), "screening"),
        (lambda: ours.paired(GOOD, GOOD), "all 3 values equal 0.*bit for bit the same"),
        (lambda: ours.paired(GOOD, [x + 0.1 for x in GOOD]), "paired differences: all 3 values"),
        (lambda: ours.welch(GOOD, [3.0, 3.0]), "candidate: all 2 values equal 3"),
        (lambda: ours.pooled(GOOD, [3.0, 3.9, 3.4]), "4.5.* times the smallest.*welch.*report"),
        (lambda: ours.pooled(GOOD, GOOD, [3.0, 3.9, 3.4]), "pooled below 3 only"),
        (lambda: ours.pooled(GOOD, GOOD, [3.0]), "other arm 1: finished runs: 1"),
        (lambda: ours.spread_ratio([]), "no arms"),
        (lambda: ours.dunnett(GOOD), "no arm was given"),
        (lambda: ours.dunnett(GOOD, [3.0, 3.9, 3.4]), "pooled below 3 only"),
        (lambda: ours.holm([0.5, 1.1]), "between 0 and 1, and 1.1"),
        (lambda: ours.fixed_sequence([math.nan]), "between 0 and 1, and nan"),
        (lambda: ours.divergence_rate(1, 0), "at least one run"),
        (lambda: ours.divergence_bound(4, 3), "4 of 3 runs cannot have diverged"),
        (lambda: ours.divergence_rate(-1, 3), "-1 of 3 runs"),
        (lambda: ours.curve_band([]), "same evaluation points.*none"),
        (lambda: ours.curve_band([[], []]), "at least one"),
        (lambda: ours.curve_band([[3.0, 2.0], [3.1]]), "these have 1, 2"),
        (lambda: ours.curve_band([[3.0, 2.0]]), "evaluation point 1: finished runs: 1"),
        (lambda: ours.curve_band([[3.0, 2.0], [3.1, 2.0]]), "evaluation point 2: all 2 values"),
        (lambda: ours.curve_band([[3.0], [math.nan]]), "run 2 of 2 ended at nan"),
        (lambda: ours.curve_band([[3.0], [3.1]]).first_exit([]), "0 evaluation points"),
        (lambda: ours.curve_band([[3.0], [3.1]]).first_exit([3.0, 3.0]), "the same steps"),
    ],
)
def test_refusals_name_the_cause(call: Callable[[], object], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        call()


# --- invariances; losses are multiples of 2⁻¹⁰, so that shifts and powers of two are exact

LOSSES = st.lists(st.integers(1024, 8192).map(lambda k: k / 1024), min_size=2, max_size=8)


@given(LOSSES, LOSSES, st.integers(-1000, 1000), st.integers(-40, 40))
def test_shift_scale_and_swap(a: list[float], b: list[float], shift: int, octaves: int) -> None:
    methods = [ours.welch, ours.pooled] + ([ours.paired] if len(a) == len(b) else [])
    factor = 2.0**octaves
    for method in methods:
        try:
            before = method(a, b)
        except StudyError:
            assume(False)
            raise
        swapped = method(b, a)
        assert swapped.difference == -before.difference
        assert swapped.standard_error == pytest.approx(before.standard_error, rel=1e-12)
        there, back = before.interval(), swapped.interval()
        assert (-back.high, -back.low) == pytest.approx((there.low, there.high), rel=1e-12)
        shifted = method([x + shift for x in a], [x + shift for x in b])
        assert shifted.difference == pytest.approx(before.difference, abs=1e-11)
        assert shifted.standard_error == pytest.approx(before.standard_error, rel=1e-12)
        scaled = method([x * factor for x in a], [x * factor for x in b])
        assert scaled.difference == before.difference * factor
        assert scaled.standard_error == pytest.approx(before.standard_error * factor, rel=1e-12)
        assert scaled.df == pytest.approx(before.df, rel=1e-12)


@given(LOSSES, st.integers(-1000, 1000), st.integers(-40, 40))
def test_floors_shift_and_scale(losses: list[float], shift: int, octaves: int) -> None:
    assume(len(set(losses)) > 1)
    before, factor = ours.noise_floor(losses), 2.0**octaves
    moved = ours.noise_floor([(x + shift) * factor for x in losses])
    assert moved.standard_deviation == before.standard_deviation * factor
    assert moved.range == before.range * factor
    assert before.standard_deviation_limits.contains(before.standard_deviation) or len(losses) == 2
    inner = ours.prediction_interval(losses, num_new=2)
    outer = ours.prediction_interval(losses)
    assert outer.low < inner.low < before.mean < inner.high < outer.high
