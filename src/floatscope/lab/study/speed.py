"""Speed as measured, and at equal loss."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from floatscope.lab.statistics import Comparison, Interval
from floatscope.lab.study.judgement import Speed
from floatscope.lab.study.runs import RunSummary


def speed(
    baseline: Sequence[RunSummary],
    arm: Sequence[RunSummary],
    *,
    comparison: Comparison | None,
    slope: float | None,
    steps: int,
) -> Speed | None:
    """An arm's speed over the baseline's, seed by seed.

    A recipe that ends d nats higher needs d / |dL/dstep| more steps for the same loss, and so a
    raw ratio r is worth r · T / (T + d / |dL/dstep|).

    Args:
        baseline: its runs, one-ulp reruns not among them.
        arm: its runs.
        comparison: of their losses; None without one.
        slope: by how much the baseline's loss falls a step, at the end; None where it does not.
        steps: T, of a run.

    Returns:
        None without a pair.
    """
    theirs = {run.seed: run.tokens_per_second for run in baseline}
    ratios = [run.tokens_per_second / theirs[run.seed] for run in arm if run.seed in theirs]
    if not ratios:
        return None
    raw = statistics.median(ratios)

    def matched(difference: float) -> float | None:
        if slope is None or steps + difference / slope <= 0:
            return None
        return raw * steps / (steps + difference / slope)

    interval = None
    if comparison is not None:
        limits = comparison.interval()
        low, high = matched(limits.high), matched(limits.low)
        if low is not None and high is not None:
            interval = Interval(low=low, high=high, confidence=limits.confidence)
    has_slope = comparison is not None and slope is not None
    return Speed(
        raw=raw,
        lowest=min(ratios),
        highest=max(ratios),
        num_pairs=len(ratios),
        emulated=any("emulated" in run.backend for run in arm),
        extra_steps=comparison.difference / slope if comparison and slope else None,
        matched=matched(comparison.difference) if comparison and has_slope else None,
        matched_interval=interval,
    )
