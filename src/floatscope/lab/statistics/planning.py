"""How many runs would settle it, and what a number of runs can settle.

Powers are exact for normal losses of one standard deviation: given the measured spread u = s / σ,
the chance of the claim is a normal probability, and its mean over u is the power. For one-sided
and two-sided tests this is the noncentral t distribution; for TOST it is Phillips 1990,
J. Pharmacokin. Biopharm. 18:137 (Owen's Q).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from floatscope.errors import StudyError
from floatscope.lab.statistics.basics import ALPHA, checked_margin
from floatscope.lab.statistics.comparison import Design
from floatscope.lab.statistics.distributions import spread_nodes

Claim = Literal["not worse", "equivalent", "different"]
TARGET_POWER = 0.8
MOST_RUNS = 100_000


def power(
    claim: Claim,
    design: Design,
    *,
    num_runs: int,
    standard_deviation: float,
    margin: float | None = None,
    difference: float = 0.0,
) -> float:
    """The probability that a study of `num_runs` pairs, or runs an arm, supports the claim.

    "not worse" and "equivalent" need a margin and hold for the `margin_interval`; "different" takes
    none and means that the 95 % interval excludes zero.

    Args:
        claim: what the study is to show
        design: of the comparison: `PAIRED`, `TWO_ARMS`, or a comparison's own
        num_runs: pairs, or runs in each arm
        standard_deviation: the true one, of a difference (paired) or of a run
        margin: in the unit of the loss
        difference: the true one

    Raises:
        StudyError: fewer than two runs, a standard deviation or margin that is not above zero.
    """
    if num_runs < 2:
        raise StudyError(f"a comparison needs at least two runs an arm, not {num_runs}")
    if not 0 < standard_deviation < math.inf:
        raise StudyError(f"the standard deviation must be above zero, not {standard_deviation}")
    df = design.df_factor * (num_runs - 1)
    error = standard_deviation * math.sqrt(design.variance_factor / num_runs)
    if claim == "different":
        return power_of(claim, 0.0, difference / error, df, design.quantile(df, 1 - ALPHA))
    critical = design.quantile(df, design.margin_confidence)
    return power_of(claim, checked_margin(margin) / error, difference / error, df, critical)


def power_of(claim: Claim, margin: float, difference: float, df: float, critical: float) -> float:
    """`power` with margin and true difference in standard errors, at a critical value of t."""
    from scipy.special import ndtr

    upper = margin / critical if claim == "equivalent" else math.inf
    u, weights = spread_nodes(df, upper)
    reach = critical * u
    if claim == "not worse":
        chance = ndtr(margin - difference - reach)
    elif claim == "equivalent":
        chance = ndtr(margin - difference - reach) - ndtr(reach - margin - difference)
    else:
        chance = ndtr(difference - reach) + ndtr(-difference - reach)
    return min(1.0, max(0.0, float(weights @ chance)))


def runs_needed(
    claim: Claim,
    design: Design,
    *,
    standard_deviation: float,
    margin: float | None = None,
    difference: float = 0.0,
    target: float = TARGET_POWER,
) -> int | None:
    """The least number of pairs, or of runs an arm, with a power of `target`; see `power`.

    A standard deviation measured on a few runs is often too small, and this number with it. It is
    for planning a new study: runs added to one until it is settled make its error rates wrong.

    Returns:
        The number; None if `MOST_RUNS` would not do.

    Raises:
        StudyError: as `power`.
    """
    _check_target(target)

    def enough(num_runs: int) -> bool:
        reached = power(
            claim,
            design,
            num_runs=num_runs,
            standard_deviation=standard_deviation,
            margin=margin,
            difference=difference,
        )
        return reached >= target

    high = 2
    while not enough(high):
        if high >= MOST_RUNS:
            return None
        high = min(2 * high, MOST_RUNS)
    low = high // 2  # is not enough, or is 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def smallest_margin(
    claim: Literal["not worse", "equivalent"],
    design: Design,
    *,
    num_runs: int,
    standard_deviation: float,
    target: float = TARGET_POWER,
) -> float:
    """The margin that so many runs can support with a power of `target` at no true difference.

    Raises:
        StudyError: as `power`.
    """

    def reached(margin: float) -> float:
        return power(
            claim, design, num_runs=num_runs, standard_deviation=standard_deviation, margin=margin
        )

    return _solve(reached, standard_deviation, target)


def smallest_difference(
    design: Design,
    *,
    num_runs: int,
    standard_deviation: float,
    target: float = TARGET_POWER,
) -> float:
    """The true difference that is found with a power of `target` (95 % interval excludes zero).

    Raises:
        StudyError: as `power`.
    """

    def reached(difference: float) -> float:
        return power(
            "different",
            design,
            num_runs=num_runs,
            standard_deviation=standard_deviation,
            difference=difference,
        )

    return _solve(reached, standard_deviation, target)


def _solve(reached: Callable[[float], float], unit: float, target: float) -> float:
    from scipy.optimize import root_scalar

    _check_target(target)
    high = unit
    while reached(high) < target:
        high *= 2
    found = root_scalar(
        lambda x: reached(x) - target, bracket=(high * 1e-9, high), xtol=high * 1e-12
    )
    return float(found.root)


def _check_target(target: float) -> None:
    if not ALPHA < target < 1:
        raise StudyError(f"the power aimed at must lie between {ALPHA} and 1, not {target}")
