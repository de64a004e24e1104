"""Rows of demonstration 2: what became of a sum, and of one with a remedy."""

from __future__ import annotations

from torch import Tensor

from floatscope.lab.lecture.predict_stall import predicted_stall
from floatscope.lab.lecture.records import Remedy, Sum


def sum_record(form: str, addend: Tensor, sums: Tensor, additions: int) -> Sum:
    """What became of a sum, and what the ulps say of it.

    Args:
        form: the format.
        addend: what was added.
        sums: after 0, 1, 2, ... additions, to the end or until nothing moves any more.
        additions: how many were meant.
    """
    stalled_after = int((sums == sums[-1]).nonzero()[0]) if sums[-1] == sums[-2] else None
    predicted_after, predicted_value = predicted_stall(form, addend.item())
    shown = [*range(0, len(sums) - 1, 100), len(sums) - 1]
    return Sum(
        format=form,
        increment=addend.item(),
        result=sums[-1].item(),
        stalled_after=stalled_after,
        predicted_after=predicted_after if predicted_after < additions else None,
        predicted_value=predicted_value,
        trace=tuple((n, sums[n].item()) for n in shown),
    )


def remedy(form: str, name: str, results: Tensor) -> Remedy:
    """One line of the second table."""
    spread = results.std().item() if results.numel() > 1 else 0.0
    return Remedy(
        format=form,
        name=name,
        result=results.mean().item(),
        spread=spread,
        repetitions=results.numel(),
    )
