"""From a stated margin to nats a token, and how fast the baseline's loss falls at the end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from floatscope.lab.study.question import Margin
from floatscope.lab.study.runs import RunSummary

END = 0.8
"""The slope at the end is that of the evaluations from this share of the training on."""


def end_slope(runs: Sequence[RunSummary], steps: int) -> float | None:
    """By how many nats a step the mean loss of `runs` falls at the end.

    A least-squares line through their mean at the evaluations of the last fifth of training, at
    least the last two. None without two evaluations, or where the loss does not fall.
    """
    curves = [dict(run.evaluations) for run in runs if not run.diverged]
    common = sorted(set.intersection(*map(set, curves))) if curves else []
    points = [step for step in common if step >= END * steps]
    points = points if len(points) > 1 else common[-2:]
    if len(points) < 2:
        return None
    means = [statistics.fmean(curve[step] for curve in curves) for step in points]
    falls = -statistics.linear_regression(points, means).slope
    return falls if falls > 0 else None


def in_nats(
    margin: Margin, *, loss: float, slope: float | None, steps: int
) -> tuple[float | None, str]:
    """The margin in nats a token, and where it comes from.

    Args:
        margin: as stated.
        loss: the baseline's mean.
        slope: of the baseline at the end, as `end_slope` gives it.
        steps: of a run.

    Returns:
        None, and why, where the margin is stated in compute and the loss does not fall.
    """
    if margin.absolute is not None:
        return margin.absolute, f"{margin.absolute:g} nats a token, as stated"
    if margin.relative is not None:
        share = f"{100 * margin.relative:g} %"
        return margin.relative * loss, f"{share} of the baseline's loss of {loss:.4f}"
    assert margin.compute is not None
    share = f"{100 * margin.compute:g} %"
    if slope is None:
        return None, (
            f"the margin was stated as what {share} more training would gain, and the baseline's "
            "loss does not fall at the end. State it as absolute or relative in another study."
        )
    return margin.compute * steps * slope, (
        f"what {share} of {steps} steps more would gain where the baseline's loss falls by "
        f"{slope:.2g} a step, at the end"
    )
