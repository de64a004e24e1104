"""Demonstration 5: updates swallowed by 16-bit weights, and the fp32 master that saves them.

Adam moves a weight by about the learning rate. Above 1.0, bf16's numbers are 2^-7 apart: an update
up to 2^-8 leaves a weight of 1.0 where it is, and the next one, just as small, does too. The fp32
master adds updates up where they are not lost, and products use its rounded copy. It costs 4 of the
16 bytes that mixed-precision training keeps for a parameter. Stochastic rounding and Kahan's sum do
without it. A second moment in bf16 is swallowed too, once beta2 is so close to 1 that its decay is
less than half an ulp.

Products run in fp32 here and only what is *stored* is rounded, so that this one cause is seen
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from floatscope.lab.base_model import (
    BASE_CONFIG,
    CharGPT,
    Training,
    bits_per_char,
    make_model,
    make_optimizer,
    single_threaded,
    train,
)
from floatscope.lab.lecture.follow import Follower
from floatscope.lab.lecture.records import Counted, Trained, Unmoved
from floatscope.lab.watch import Done
from floatscope.recipes import recipe
from floatscope.recipes.formats_of import Stored
from floatscope.rounding import round_to


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A way to store, by name."""

    name: str
    stored: Stored
    beta2: float = 0.95


ARMS = (
    Arm(name="fp32", stored=Stored()),
    Arm(name="bf16", stored=Stored(weights="bf16")),
    Arm(name="fp16", stored=Stored(weights="fp16")),
    Arm(name="bf16+master", stored=Stored(weights="bf16", master="fp32")),
)
MORE = (
    Arm(name="bf16+sr", stored=Stored(weights="bf16", update="stochastic")),
    Arm(name="bf16+kahan", stored=Stored(weights="bf16", update="kahan")),
    Arm(name="v-bf16", stored=Stored(moments=("fp32", "bf16"))),
    Arm(name="fp32", stored=Stored(), beta2=0.999),
    Arm(name="v-bf16", stored=Stored(moments=("fp32", "bf16")), beta2=0.999),
)
SEEDS, STEPS, EVERY = (0, 1, 2), 300, 50
UPDATES = (3e-3, 3e-4, 3e-5)


def unmoved(base: CharGPT, update: float, form: str) -> Unmoved:
    """On paper: weights that +update or -update leaves where they are, both signs counted."""

    def counted(weights: Sequence[Tensor]) -> Counted:
        w = round_to(torch.cat([p.detach().flatten() for p in weights]).double(), form)
        stays = [int((round_to(w + u, form) == w).sum()) for u in (update, -update)]
        return Counted(count=sum(stays), of=2 * w.numel())

    return Unmoved(
        format=form,
        update=update,
        matrices=counted([p for p in base.parameters() if p.ndim == 2]),
        gains=counted([p for p in base.parameters() if p.ndim == 1]),
    )


def train_arm(
    data: Tensor, val: Tensor, arm: Arm, training: Training, done: Done = lambda _: None
) -> Trained:
    """Really: one training from scratch, its weights and states stored as the arm says."""
    training = replace(training, beta2=arm.beta2)
    model = make_model(BASE_CONFIG, training.seed)
    optimizer = make_optimizer(model, training)
    how = replace(recipe("fp32"), name=arm.name, stored=arm.stored)
    followed = arm.beta2 if arm.stored.moments[1] != "fp32" else None
    follower = Follower(optimizer, followed, EVERY)
    with single_threaded():
        for n, result in enumerate(train(model, optimizer, data, training, how), start=1):
            follower.after(result.stored)
            done(n)
        bits = bits_per_char(model, val)
    return Trained(
        arm=arm.name, seed=training.seed, beta2=arm.beta2, bits=bits,
        lost=tuple(follower.lost), moments=tuple(follower.moments),
    )  # fmt: skip
