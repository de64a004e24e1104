"""Several arms against one control."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from floatscope.errors import StudyError
from floatscope.lab.statistics.basics import ALPHA
from floatscope.lab.statistics.compare import pooled
from floatscope.lab.statistics.comparison import Comparison


def dunnett(control: Iterable[float], *arms: Iterable[float]) -> tuple[Comparison, ...]:
    """Every arm against the control, with intervals that hold for all of them at once.

    The standard deviation is pooled over all arms. Verdicts on these comparisons are wrong about
    any arm in at most 5 % of studies. With a single arm this is `pooled`.

    Source: Dunnett 1955, JASA 50:1096; 1964, Biometrics 20:482.

    Raises:
        StudyError: no arms, or arms that cannot be pooled; see `pooled`.
    """
    lists = [tuple(control), *(tuple(arm) for arm in arms)]
    if len(lists) < 2:
        raise StudyError("no arm was given to compare with the control")
    num_control = len(lists[0])
    loadings = tuple(math.sqrt(len(arm) / (len(arm) + num_control)) for arm in lists[1:])
    comparisons = []
    for k in range(1, len(lists)):
        others = [arm for j, arm in enumerate(lists) if j not in (0, k)]
        single = pooled(lists[0], lists[k], *others)
        family = loadings if len(loadings) > 1 else ()
        design = replace(single.design, method="Dunnett", loadings=family)
        comparisons.append(replace(single, design=design))
    return tuple(comparisons)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjusted p values, in the given order: all below 0.05 hold together.

    The k-th smallest of m is multiplied by m - k + 1; none falls below a smaller one's; 1 at most.

    Source: Holm 1979, Scandinavian Journal of Statistics 6:65.

    Raises:
        StudyError: a value is no probability.
    """
    _check_probabilities(p_values)
    adjusted, so_far = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(sorted(range(len(p_values)), key=lambda k: p_values[k])):
        so_far = max(so_far, min(1.0, p_values[k] * (len(p_values) - rank)))
        adjusted[k] = so_far
    return tuple(adjusted)


def fixed_sequence(p_values: Sequence[float], alpha: float = ALPHA) -> tuple[bool, ...]:
    """Which claims hold when tested in an order that the plan fixed, up to the first failure.

    No correction is needed; a claim behind a failure does not hold, however small its p.

    Source: Maurer, Hothorn and Lehmacher 1995, Biometrie in der chemisch-pharmazeutischen
    Industrie 6:3.

    Raises:
        StudyError: a value is no probability.
    """
    _check_probabilities(p_values)
    holds, still = [], True
    for p in p_values:
        still = still and p < alpha
        holds.append(still)
    return tuple(holds)


def _check_probabilities(p_values: Sequence[float]) -> None:
    for p in p_values:
        if not 0 <= p <= 1:
            raise StudyError(f"a p value lies between 0 and 1, and {p} does not")
