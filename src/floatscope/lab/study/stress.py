"""A stress study: learning rates up to where each recipe fails, with remedies and without.

Source: Wortsman et al. 2023, arXiv:2309.14322, who study instabilities of large models on small
ones by raising the learning rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.run.plan import TrainConfig

Remedy = Literal["none", "qk-norm", "z-loss", "both"]
Z_LOSS = 1e-4
"""Chowdhery et al. 2022, section 5."""


@dataclass(frozen=True, kw_only=True)
class Stress:
    """What is varied besides recipe and seed, and what counts as failing."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # unknown keys are errors

    peak_lrs: tuple[float, ...]
    """Peak learning rates, rising."""
    remedies: tuple[Remedy, ...] = ("none", "qk-norm", "z-loss", "both")
    """Normalized q and k; a z-loss of 1e-4; both; neither."""
    fails_by: float = 1.0
    """A run fails if it diverges, or ends so many nats above the best run of the baseline."""

    def __post_init__(self) -> None:
        if not self.peak_lrs or not self.remedies:
            raise ValueError("stress.peak_lrs and stress.remedies must name at least one each")
        if any(b <= a for a, b in zip(self.peak_lrs, self.peak_lrs[1:], strict=False)):
            raise ValueError("stress.peak_lrs must rise")
        if len(set(self.remedies)) < len(self.remedies):
            raise ValueError(f"stress.remedies names one twice: {', '.join(self.remedies)}")
        for value in (*self.peak_lrs, self.fails_by):
            if not 0 < value < math.inf:
                raise ValueError(f"stress takes positive numbers, not {value}")


def under(
    remedy: Remedy, peak_lr: float, model: GPTConfig, train: TrainConfig
) -> tuple[GPTConfig, TrainConfig]:
    """`model` and `train` with a remedy, or without, and another peak learning rate."""
    return (
        replace(model, qk_norm=remedy in ("qk-norm", "both")),
        replace(train, peak_lr=peak_lr, z_loss=Z_LOSS if remedy in ("z-loss", "both") else 0.0),
    )
