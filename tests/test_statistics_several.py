"""Several arms, rates and curves: against scipy, statsmodels and published tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from floatscope.lab import statistics as ours
from floatscope.lab.statistics.distributions import dunnett_quantile, dunnett_tail, spread_nodes
from tests.test_statistics import arms, sample_with

# --- several arms


@pytest.mark.parametrize("sizes", [(3, 3, 3), (6, 4, 5), (10, 5, 5, 5, 5)])
def test_dunnett_against_scipy(sizes: tuple[int, ...]) -> None:
    control, *rest = (
        sample_with(float(np.mean(x)), 0.002 + 0.0005 * k, len(x))
        for k, x in enumerate(arms(sum(sizes), *sizes))
    )
    comparisons = ours.dunnett(control, *rest)
    rng = np.random.default_rng(0)
    expected: Any = stats.dunnett(*(np.array(x) for x in rest), control=np.array(control), rng=rng)
    limits = expected.confidence_interval(0.95)
    for k, comparison in enumerate(comparisons):
        t = comparison.difference / comparison.standard_error
        assert t == pytest.approx(expected.statistic[k], rel=1e-9)
        assert comparison.p_different() == pytest.approx(expected.pvalue[k], abs=2e-4)
        half = (limits.high[k] - limits.low[k]) / 2  # scipy's is random in the third digit
        assert comparison.interval().high - comparison.difference == pytest.approx(half, rel=5e-3)
        assert comparison.margin_interval() == comparison.interval()


def test_dunnetts_own_example() -> None:
    """Dunnett 1955: blood counts under two drugs; p values of scipy's documentation."""
    control = [7.40, 8.50, 7.20, 8.24, 9.84, 8.32]
    drugs = [9.76, 8.80, 7.68, 9.36], [12.80, 9.68, 12.16, 9.20, 10.55]
    p = [c.p_different() for c in ours.dunnett(control, *drugs)]
    assert p == pytest.approx([0.62004941, 0.0059035], abs=1e-4)


@pytest.mark.parametrize(
    ("df", "published"),
    [
        (5, [2.57, 3.03, 3.29, 3.48, 3.62, 3.73]),
        (10, [2.23, 2.57, 2.76, 2.89, 2.99, 3.07]),
        (20, [2.09, 2.38, 2.54, 2.65, 2.73, 2.80]),
        (60, [2.00, 2.27, 2.41, 2.51, 2.58, 2.64]),
    ],
)
def test_dunnetts_table(df: int, published: list[float]) -> None:
    """Dunnett 1964, Table II: two-sided, 95 %, one to six arms as large as the control."""
    quantiles = [dunnett_quantile(df, (math.sqrt(0.5),) * k, 0.95) for k in range(1, 7)]
    assert [round(q, 2) for q in quantiles] == published


@pytest.mark.parametrize("df", [1, 2, 3.7, 30, 5000])
def test_largest_of_one_t_is_student(df: float) -> None:
    for t in (0.3, 2.0, 6.0):
        tail = dunnett_tail(df, (math.sqrt(0.5),), t)
        assert tail == pytest.approx(2 * stats.t(df).sf(t), abs=1e-8)
    u, weights = spread_nodes(df)
    assert weights.sum() == pytest.approx(1, abs=1e-8)
    assert weights @ u**2 == pytest.approx(1, abs=1e-8)


def test_dunnett_with_one_arm_is_pooled() -> None:
    a, b = arms(1, 4, 4)
    assert ours.dunnett(a, b)[0].margin_interval() == ours.pooled(a, b).margin_interval()


@pytest.mark.parametrize("num", [1, 2, 5, 9])
def test_holm_against_statsmodels(num: int) -> None:
    p_values = np.random.default_rng(num).beta(0.5, 3, num).tolist()
    expected = multipletests(p_values, method="holm")[1]
    assert ours.holm(p_values) == pytest.approx(expected, rel=1e-12)
    assert ours.holm([]) == ()


def test_fixed_sequence_stops_at_the_first_failure() -> None:
    assert ours.fixed_sequence([0.01, 0.04, 0.06, 0.001]) == (True, True, False, False)
    assert ours.fixed_sequence([0.05, 0.001]) == (False, False)
    assert ours.fixed_sequence([]) == ()


# --- divergence


@pytest.mark.parametrize("n", [1, 3, 5, 20])
def test_clopper_pearson_against_scipy_and_statsmodels(n: int) -> None:
    for k in range(n + 1):
        interval = ours.divergence_rate(k, n)
        exact = stats.binomtest(k, n).proportion_ci(0.95, "exact")
        assert (interval.low, interval.high) == pytest.approx((exact.low, exact.high), abs=1e-12)
        beta = proportion_confint(k, n, method="beta")
        assert (interval.low, interval.high) == pytest.approx(beta, abs=1e-12)
        less = stats.binomtest(k, n, alternative="less").proportion_ci(0.95, "exact")
        assert ours.divergence_bound(k, n) == pytest.approx(less.high, abs=1e-12)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_divergence_intervals_cover_exactly(n: int) -> None:
    """The exact coverage, from the binomial distribution, at rates throughout (0, 1)."""
    counts = range(n + 1)
    for rate in np.linspace(0.005, 0.995, 100):
        chance = stats.binom.pmf(counts, n, rate)
        two = sum(chance[k] for k in counts if ours.divergence_rate(k, n).contains(rate))
        one = sum(chance[k] for k in counts if rate <= ours.divergence_bound(k, n))
        assert two >= 0.95 - 1e-12
        assert one >= 0.95 - 1e-12


# --- curves


def test_the_band_is_a_prediction_interval_at_each_point() -> None:
    curves = np.random.default_rng(0).normal(3, 0.01, (8, 5))
    band = ours.curve_band(curves.tolist())
    for k in range(5):
        interval = ours.prediction_interval(curves[:, k].tolist(), confidence=1 - 0.05 / 5)
        assert (band.low[k], band.high[k]) == pytest.approx((interval.low, interval.high))
        assert band.mean[k] == pytest.approx(curves[:, k].mean())
    assert band.num_runs == 8


def test_the_first_exit() -> None:
    band = ours.curve_band([[4.0, 3.0, 2.0], [4.1, 3.1, 2.1], [4.05, 3.0, 2.2], [4.0, 3.1, 2.0]])
    mean = list(band.mean)
    assert band.first_exit(mean) is None
    assert band.first_exit(mean[:1]) is None
    assert band.first_exit([mean[0], band.high[1] + 0.01, 9.0]) == 1
    assert band.first_exit([mean[0], mean[1], band.low[2] - 0.01]) == 2
    assert band.first_exit([math.nan, mean[1], mean[2]]) == 0
    assert band.first_exit([mean[0], math.inf]) == 1


@pytest.mark.parametrize("persistence", [0.0, 0.9])
def test_one_more_curve_stays_in_the_band(persistence: float) -> None:
    """Independent points fill the Bonferroni bound, dependent ones stay below it."""
    rng, num = np.random.default_rng(1), 600
    curves = rng.normal(size=(num, 9, 10))
    for k in range(1, 10):
        curves[..., k] = persistence * curves[..., k - 1] + curves[..., k]
    left = sum(
        ours.curve_band(curves[j, :8].tolist()).first_exit(curves[j, 8].tolist()) is not None
        for j in range(num)
    )
    assert left / num <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / num)
