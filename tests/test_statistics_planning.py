"""What a number of runs can settle: a table to its printed digits, statsmodels, PowerTOST."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy import stats
from statsmodels.stats.power import TTestIndPower, TTestPower

from floatscope.errors import StudyError
from floatscope.lab.statistics import (
    PAIRED,
    TWO_ARMS,
    Design,
    curve_band,
    divergence_bound,
    dunnett,
    noise_floor,
    paired,
    power,
    prediction_interval,
    runs_needed,
    smallest_difference,
    smallest_margin,
)
from floatscope.lab.statistics.planning import MOST_RUNS, Claim, power_of

POOLED_OVER_FIVE_ARMS = replace(PAIRED, df_factor=4)
# n; half of the 95 % interval of a mean difference, of a prediction, low and high limit of σ, all
# in units of s; Δ/σ with 80 % power of TOST; difference/σ found with 80 % power; the same two with
# 4 (n - 1) degrees of freedom; divergence rates that 0 of n rules out, in percent. The sixth column
# is 1.4345 at n = 6 and 1.1560 at n = 8 (statsmodels agrees); 1.44 and 1.15 have been printed.
TABLE = """
 3 2.48 4.97 0.52 6.28 2.66 3.26 1.85 1.85 63
 4 1.59 3.56 0.57 3.73 1.94 2.13 1.55 1.53 53
 5 1.24 3.04 0.60 2.87 1.60 1.68 1.37 1.33 45
 6 1.05 2.78 0.62 2.45 1.40 1.43 1.24 1.20 39
 8 0.84 2.51 0.66 2.04 1.15 1.16 1.06 1.03 31
10 0.72 2.37 0.69 1.83 1.00 1.00 0.94 0.91 26
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"n={row[0]}")
def test_what_n_buys(row: list[str]) -> None:
    n = int(row[0])
    x = [k - (n - 1) / 2 for k in range(n)]
    floor = noise_floor(x)
    s, limits = floor.standard_deviation, floor.standard_deviation_limits
    differences = paired([0.0] * n, x)
    settled = {"num_runs": n, "standard_deviation": 1.0}
    by_statsmodels = TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8)
    assert smallest_difference(PAIRED, **settled) == pytest.approx(by_statsmodels, rel=1e-6)
    seen = [
        f"{differences.interval().high / s:.2f}",
        f"{prediction_interval(x).high / s:.2f}",
        f"{limits.low / s:.2f}",
        f"{limits.high / s:.2f}",
        f"{smallest_margin('equivalent', PAIRED, **settled):.2f}",
        f"{smallest_difference(PAIRED, **settled):.2f}",
        f"{smallest_margin('equivalent', POOLED_OVER_FIVE_ARMS, **settled):.2f}",
        f"{smallest_difference(POOLED_OVER_FIVE_ARMS, **settled):.2f}",
        f"{100 * divergence_bound(0, n):.0f}",
    ]
    assert seen == row[1:]


def test_three_pairs_support_a_margin_of_0_0072() -> None:
    margin = smallest_margin("equivalent", PAIRED, num_runs=3, standard_deviation=0.0027)
    assert margin == pytest.approx(0.0072, abs=5e-5)


@pytest.mark.parametrize(
    ("n", "effect"), [(2, 0.1), (2, 5.0), (3, 0.7), (3, 3.0), (5, 2.0), (10, 1.0), (100, 0.3)]
)
def test_powers_of_t_tests_against_statsmodels(n: int, effect: float) -> None:
    for design, theirs in ((PAIRED, TTestPower()), (TWO_ARMS, TTestIndPower())):
        two = power("different", design, num_runs=n, standard_deviation=2, difference=2 * effect)
        one = power("not worse", design, num_runs=n, standard_deviation=2, margin=2 * effect)
        assert two == pytest.approx(theirs.power(effect, n, 0.05), abs=1e-8)
        assert one == pytest.approx(theirs.power(effect, n, 0.05, alternative="larger"), abs=1e-8)


@pytest.mark.parametrize(
    ("cv", "ratio", "lowest", "num", "published"),
    [
        (0.20, 0.95, 0.80, (20,), 0.834680),
        (0.125, 0.975, 0.90, (32,), 0.800218),
        (0.35, 0.95, 0.80, (52, 49), 0.8011186),
    ],
)
def test_tost_power_of_powertost(
    cv: float, ratio: float, lowest: float, num: tuple[int, ...], published: float
) -> None:
    """The README of the R package PowerTOST (exact, Owen's Q): two crossovers, two parallel groups.

    Log-normal data with coefficient of variation `cv`; margins `lowest` and its reciprocal.
    """
    s = math.sqrt(math.log(1 + cv**2))
    error = s * math.sqrt(2 / num[0] if len(num) == 1 else 1 / num[0] + 1 / num[1])
    df = sum(num) - 2
    margin, difference = -math.log(lowest) / error, math.log(ratio) / error
    ours = power_of("equivalent", margin, difference, df, float(stats.t(df).ppf(0.95)))
    assert ours == pytest.approx(published, abs=5e-7)


def test_power_at_the_margin_is_the_error_rate() -> None:
    for n in (2, 3, 8):
        at = {"num_runs": n, "standard_deviation": 0.3, "margin": 0.5, "difference": 0.5}
        assert power("not worse", PAIRED, **at) == pytest.approx(0.05, abs=1e-9)
        assert power("equivalent", PAIRED, **at) <= 0.05
    none = power("different", PAIRED, num_runs=4, standard_deviation=1)
    assert none == pytest.approx(0.05, abs=1e-9)


@pytest.mark.parametrize("claim", ["not worse", "equivalent"])
@pytest.mark.parametrize("margin", [0.05, 0.3, 1.0, 30.0])
def test_runs_needed_is_the_least_number(claim: Claim, margin: float) -> None:
    for design in (PAIRED, TWO_ARMS):
        n = runs_needed(claim, design, standard_deviation=1, margin=margin)
        assert n is not None

        def reached(n: int, design: Design = design) -> float:
            return power(claim, design, num_runs=n, standard_deviation=1, margin=margin)

        assert reached(n) >= 0.8
        assert n == 2 or reached(n - 1) < 0.8


def test_runs_needed_can_be_out_of_reach() -> None:
    assert runs_needed("equivalent", PAIRED, standard_deviation=1, margin=1e-4) is None
    hopeless = {"standard_deviation": 1.0, "margin": 0.5, "difference": 0.5}
    assert runs_needed("not worse", PAIRED, **hopeless) is None
    assert power("equivalent", PAIRED, num_runs=3, standard_deviation=1, margin=1e-9) < 1e-9
    assert MOST_RUNS == 100_000


def test_claims_about_several_arms_need_more_runs() -> None:
    x = [3.0, 3.1, 3.2]
    (one, _, _) = dunnett(x, [3.1, 3.2, 3.3], [3.0, 3.2, 3.3], [3.05, 3.1, 3.25])
    alone = replace(one.design, loadings=())
    needed = [
        runs_needed("equivalent", d, standard_deviation=1, margin=2) for d in (alone, one.design)
    ]
    assert needed[0] is not None
    assert needed[1] is not None
    assert needed[0] < needed[1]


def test_a_band_of_three_curves_says_little() -> None:
    band = curve_band([[float(k + j) for j in range(20)] for k in (0, 1, 2)])
    assert (band.high[0] - band.mean[0]) / math.sqrt(4 / 3) == pytest.approx(20.0, abs=0.05)


def test_refusals() -> None:
    with pytest.raises(StudyError, match="at least two runs an arm, not 1"):
        power("different", PAIRED, num_runs=1, standard_deviation=1)
    with pytest.raises(StudyError, match="must be above zero, not 0"):
        runs_needed("equivalent", PAIRED, standard_deviation=0, margin=1)
    with pytest.raises(StudyError, match="no margin was stated"):
        runs_needed("equivalent", PAIRED, standard_deviation=1)
    with pytest.raises(StudyError, match="between 0.05 and 1, not 1"):
        smallest_difference(PAIRED, num_runs=3, standard_deviation=1, target=1.0)
    with pytest.raises(StudyError, match="between 0.05 and 1, not 80"):
        runs_needed("equivalent", PAIRED, standard_deviation=1, margin=1, target=80)
