"""The second moment of Adam in a narrow format: what a step leaves unchanged, and what decays."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from floatscope.formats import FloatFormat
from floatscope.formats import format as format_called
from floatscope.lab.lecture.records import Counted, Decay, MomentAt
from floatscope.rounding import round_to

BETAS, FORMATS, DECAY_STEPS = (0.95, 0.999), ("fp32", "bf16"), 3000
QUANTILES = (0.05, 0.5, 0.95)


class SecondMoment:
    """Follows an AdamW's second moment, and keeps one in fp32 from the same gradients beside it.

    Args:
        optimizer: before its first step.
        beta2: its decay.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, beta2: float) -> None:
        self._optimizer, self._beta2 = optimizer, beta2
        self._parameters: list[Tensor] = [p for g in optimizer.param_groups for p in g["params"]]
        self._stored = [torch.zeros_like(p) for p in self._parameters]
        self._wide = [torch.zeros_like(p) for p in self._parameters]

    @torch.no_grad()
    def after(self, step: int, *, measures: bool) -> Sequence[MomentAt]:
        """To be called after each step, while the gradients are there; one record if asked for."""
        before = self._stored
        self._stored = [self._optimizer.state[p]["exp_avg_sq"].clone() for p in self._parameters]
        for parameter, wide in zip(self._parameters, self._wide, strict=True):
            assert parameter.grad is not None
            wide.mul_(self._beta2).addcmul_(parameter.grad, parameter.grad, value=1 - self._beta2)
        if not measures:
            return ()
        old, new, wide = (
            torch.cat([part.flatten() for part in parts])
            for parts in (before, self._stored, self._wide)
        )
        there = (old > 0) & (wide > 0)
        ratio = (new[there].double() / wide[there].double()).sqrt()
        return (
            MomentAt(
                step=step,
                unchanged=Counted(count=int((new == old)[there].sum()), of=int(there.sum())),
                ratio=tuple(ratio.quantile(torch.tensor(QUANTILES).double()).tolist()),
            ),
        )


def decay() -> tuple[Decay, ...]:
    """What is left after 3 000 times v <- round(beta2 * v), from every bf16 number in [1, 2)."""
    return tuple(_decayed(name, beta2) for beta2 in BETAS for name in FORMATS)


def _decayed(name: str, beta2: float) -> Decay:
    bf16 = format_called("bf16")
    assert isinstance(bf16, FloatFormat)
    start = 1 + torch.arange(2**bf16.fraction_bits) * float(bf16.eps)
    v = start.float()
    for _ in range(DECAY_STEPS):
        v = round_to(v * beta2, name)
    left = v.double() / start.double()
    return Decay(
        format=name,
        beta2=beta2,
        steps=DECAY_STEPS,
        exact=beta2**DECAY_STEPS,
        smallest=left.min().item(),
        largest=left.max().item(),
    )
