"""The arithmetic of a second moment's decay in a narrow format, without any model."""

from __future__ import annotations

import torch

from floatscope.formats import FloatFormat
from floatscope.formats import format as format_called
from floatscope.lab.lecture.records import Decay
from floatscope.rounding import round_to

BETAS, FORMATS, DECAY_STEPS = (0.95, 0.999), ("fp32", "bf16"), 3000


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
