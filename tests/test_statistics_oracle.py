"""Statistics that rest on linear models, against statsmodels' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray

from floatscope.lab.statistics import curve_band, pooled, prediction_interval
from floatscope.lab.study.margin import END, end_slope
from floatscope.lab.study.runs import RunSummary


def normal(seed: int, *shape: int) -> NDArray[np.float64]:
    return 3.28 + 0.002 * np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("n", [2, 3, 5, 40])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_prediction_intervals_are_those_of_a_constant(n: int, confidence: float) -> None:
    losses = normal(n, n)
    model: Any = sm.OLS(losses, np.ones((n, 1))).fit()
    low, high = model.get_prediction([[1.0]]).conf_int(obs=True, alpha=1 - confidence)[0]
    ours = prediction_interval(losses, confidence=confidence)
    assert (ours.low, ours.high) == pytest.approx((low, high), rel=1e-12)


def test_a_curve_band_is_a_bonferroni_prediction_at_each_point() -> None:
    curves, num_points = normal(1, 8, 6), 6
    band = curve_band(curves.tolist())
    for k in range(num_points):
        model: Any = sm.OLS(curves[:, k], np.ones((8, 1))).fit()
        low, high = model.get_prediction([[1.0]]).conf_int(obs=True, alpha=0.05 / num_points)[0]
        assert (band.low[k], band.high[k]) == pytest.approx((low, high), rel=1e-12)


@pytest.mark.parametrize("sizes", [(3, 3, 3), (10, 5, 5, 5), (3, 4, 5)])
def test_pooled_comparisons_are_contrasts_of_a_one_way_model(sizes: tuple[int, ...]) -> None:
    arms = [normal(50 + k, n) + 0.001 * k for k, n in enumerate(sizes)]  # of like spread
    group = np.repeat(np.arange(len(sizes)), sizes)
    model: Any = sm.OLS(np.concatenate(arms), np.eye(len(sizes))[group]).fit()
    contrast = np.zeros(len(sizes))
    contrast[:2] = -1, 1
    theirs = model.t_test(contrast)
    ours = pooled(*arms)
    assert ours.df == theirs.df_denom
    assert ours.difference == pytest.approx(theirs.effect[0])
    assert ours.standard_error == pytest.approx(float(theirs.sd[0, 0]))
    low, high = theirs.conf_int(alpha=0.05)[0]
    assert (ours.interval().low, ours.interval().high) == pytest.approx((low, high))
    assert ours.p_different() == pytest.approx(float(theirs.pvalue))


def run_with(losses: NDArray[np.float64], steps: NDArray[np.int64]) -> RunSummary:
    return RunSummary(
        label="x", recipe="fp32", seed=1, ulp_rerun=0, exit_reason="finished",
        validation_loss=float(losses[-1]), bits_per_char=1.0, skipped_steps=0, zero_fraction=0.0,
        zero_fraction_absent_rows=0.0, zero_fraction_elsewhere=0.0, final_loss_scale=1.0,
        peak_rss_bytes=1, tokens_per_second=1.0, backend="native", environments=(),
        evaluations=tuple(zip(steps.tolist(), losses.tolist(), strict=True)),
    )  # fmt: skip


@pytest.mark.parametrize("every", [10, 25, 90])
def test_the_slope_at_the_end_is_a_least_squares_line(every: int) -> None:
    steps = np.arange(0, 401, every)
    curves = [5 * np.exp(-steps / 150) + 0.01 * normal(k, len(steps)) for k in range(3)]
    points = steps >= END * 400 if (steps >= END * 400).sum() > 1 else steps >= steps[-2]
    design = sm.add_constant(steps[points].astype(float))
    model: Any = sm.OLS(np.mean(curves, 0)[points], design).fit()
    found = end_slope([run_with(curve, steps) for curve in curves], 400)
    assert found == pytest.approx(-model.params[1])


def test_a_slope_needs_two_evaluations_and_a_falling_loss() -> None:
    steps = np.array([0, 400])
    assert end_slope([run_with(np.array([5.0, 3.0]), steps)], 400) == pytest.approx(2 / 400)
    assert end_slope([run_with(np.array([3.0, 5.0]), steps)], 400) is None
    assert end_slope([run_with(np.array([3.0]), steps[:1])], 400) is None
    assert end_slope([], 400) is None
