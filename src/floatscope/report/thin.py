"""Long curves made short without losing a spike: the smallest and largest of each stretch stay."""

from __future__ import annotations

import math
from collections.abc import Sequence

PIXELS = 640
"""Stretches of a curve where there is room for as many."""
BUDGET = 16_000
"""Points of one figure, all its curves together."""


def stretches(num_curves: int) -> int:
    """Into how many stretches each of so many curves is cut."""
    return max(16, min(PIXELS, BUDGET // (2 * max(1, num_curves))))


def thinned(values: Sequence[float], num_stretches: int) -> list[int]:
    """Indices to keep: ends, and of each stretch the smallest, the largest and the first NaN.

    All of them if there are at most two a stretch.
    """
    size = len(values)
    if size <= 2 * num_stretches:
        return list(range(size))
    kept = {0, size - 1}
    for k in range(num_stretches):
        part = range(k * size // num_stretches, (k + 1) * size // num_stretches)
        finite = [i for i in part if math.isfinite(values[i])]
        if finite:
            kept |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        first = next((i for i in part if not math.isfinite(values[i])), None)
        if first is not None:
            kept.add(first)
    return sorted(kept)
