"""Follows a training of demonstration 5: updates that left no trace, and the second moment."""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope.lab.lecture.records import Counted, LostAt, MomentAt
from floatscope.recipes.movement import StoredUpdate

QUANTILES = (0.05, 0.5, 0.95)


class Follower:
    """To be told of every step; keeps a record of each `every`th.

    Args:
        optimizer: an AdamW before its first step.
        beta2: of its second moment, if that is followed too: one in fp32 is kept beside it, from
            the same gradients. None leaves it alone.
        every: steps from record to record.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, beta2: float | None, every: int) -> None:
        self.lost: list[LostAt] = []
        self.moments: list[MomentAt] = []
        self._every, self._steps = every, 0
        self._second = None if beta2 is None else SecondMoment(optimizer, beta2)

    def after(self, stored: StoredUpdate | None) -> None:
        """A step was done, and this became of its update; the gradients are still there."""
        self._steps += 1
        is_due = self._steps % self._every == 0
        if self._second is not None:
            self._second.after()
        if is_due and stored is not None:
            lost = Counted(count=stored.lost, of=stored.of)
            self.lost.append(LostAt(step=self._steps, lost=lost))
        if is_due and self._second is not None:
            self.moments.append(self._second.at(self._steps))


class SecondMoment:
    """An AdamW's second moment as it is stored, and in fp32 from the same gradients."""

    def __init__(self, optimizer: torch.optim.Optimizer, beta2: float) -> None:
        self._optimizer, self._beta2 = optimizer, beta2
        self._parameters: list[Tensor] = [p for g in optimizer.param_groups for p in g["params"]]
        self._before = self._now = [torch.zeros_like(p) for p in self._parameters]
        self._wide = [torch.zeros_like(p) for p in self._parameters]

    @torch.no_grad()
    def after(self) -> None:
        """Take in a step."""
        self._before = self._now
        self._now = [self._optimizer.state[p]["exp_avg_sq"].clone() for p in self._parameters]
        for parameter, wide in zip(self._parameters, self._wide, strict=True):
            assert parameter.grad is not None
            wide.mul_(self._beta2).addcmul_(parameter.grad, parameter.grad, value=1 - self._beta2)

    def at(self, step: int) -> MomentAt:
        """What the last step left unchanged, and how far the two are apart."""
        old, new, wide = (
            torch.cat([part.flatten() for part in parts])
            for parts in (self._before, self._now, self._wide)
        )
        there = (old > 0) & (wide > 0)
        ratio = (new[there].double() / wide[there].double()).sqrt()
        low, median, high = ratio.quantile(torch.tensor(QUANTILES).double()).tolist()
        return MomentAt(
            step=step,
            unchanged=Counted(count=int((new == old)[there].sum()), of=int(there.sum())),
            ratio=(low, median, high),
        )
