"""Student's t, its spread by quadrature, and the largest of several t with a common control.

All integrals are Gauss-Legendre sums on fixed nodes, so results are the same in every call.
"""

from __future__ import annotations

import functools
import math
from typing import Any

TAIL = 1e-15
"""Probability left out at either end of an integral."""
NUM_NODES = 96


def student_quantile(df: float, probability: float) -> float:
    """The t below which Student's distribution with `df` degrees of freedom has `probability`."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def student_tail(df: float, t: float) -> float:
    """P(T >= t)."""
    from scipy.special import stdtr

    return float(stdtr(df, -t))


@functools.cache
def _legendre() -> tuple[Any, Any]:
    from scipy.special import roots_legendre

    return roots_legendre(NUM_NODES)


def spread_nodes(df: float, upper: float = math.inf) -> tuple[Any, Any]:
    """Nodes and weights over u = s / σ, where df · u² is chi-square with `df` degrees of freedom.

    The weighted sum of g at the nodes is the expectation of g(u) over u < `upper`.

    Returns:
        Two float64 arrays; empty when nearly all of u lies above `upper`.
    """
    import numpy as np
    from scipy.special import gammainccinv, gammaincinv, gammaln

    low = math.sqrt(gammaincinv(df / 2, TAIL) * 2 / df)
    high = min(upper, math.sqrt(gammainccinv(df / 2, TAIL) * 2 / df))
    if high <= low:
        return np.empty(0), np.empty(0)
    x, weights = _legendre()
    u = low + (high - low) * (x + 1) / 2
    log_density = (
        math.log(2)
        + df / 2 * math.log(df / 2)
        - gammaln(df / 2)
        + (df - 1) * np.log(u)
        - df / 2 * u**2
    )
    return u, weights * (high - low) / 2 * np.exp(log_density)


def dunnett_tail(df: float, loadings: tuple[float, ...], t: float) -> float:
    """P(largest |Tᵢ| >= t) for differences to one control with a pooled standard deviation.

    The correlation of Tᵢ and Tⱼ is loadingᵢ · loadingⱼ, with loadingᵢ² = nᵢ / (nᵢ + n₀), so given
    the control's own deviation z and the spread u the Tᵢ are independent:
    P(all |Tᵢ| < t) = E over u and z of the product over i of
    Φ((t u - λᵢ z) / √(1 - λᵢ²)) - Φ((-t u - λᵢ z) / √(1 - λᵢ²)).

    Source: Dunnett 1955, JASA 50:1096; two-sided: Dunnett 1964, Biometrics 20:482.
    """
    import numpy as np
    from scipy.special import ndtr

    if t <= 0:
        return 1.0
    u, u_weights = spread_nodes(df)
    x, weights = _legendre()
    reach = 8.5  # Φ(-8.5) is about 1e-17
    z, z_weights = reach * x, reach * weights * np.exp(-((reach * x) ** 2) / 2)
    z_weights = z_weights / math.sqrt(2 * math.pi)
    inside = np.ones((len(u), len(z)))
    for loading in loadings:
        own = math.sqrt(1 - loading**2)
        center, half = loading / own * z, t / own * u[:, None]
        inside *= ndtr(half - center) - ndtr(-half - center)
    return min(1.0, max(0.0, 1 - float(u_weights @ inside @ z_weights)))


@functools.lru_cache(maxsize=256)
def dunnett_quantile(df: float, loadings: tuple[float, ...], confidence: float) -> float:
    """The t that no |Tᵢ| exceeds with probability `confidence`; see `dunnett_tail`."""
    from scipy.optimize import root_scalar

    alone = student_quantile(df, (1 + confidence) / 2)
    bonferroni = student_quantile(df, 1 - (1 - confidence) / 2 / len(loadings))
    found = root_scalar(
        lambda t: dunnett_tail(df, loadings, t) - (1 - confidence),
        bracket=(alone * 0.999, bonferroni * 1.001),
        xtol=1e-10,
    )
    return float(found.root)
