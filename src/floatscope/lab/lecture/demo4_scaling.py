"""Demonstration 4: dynamic loss scaling finds the scale by itself.

Nobody knows the right scale in advance, and it moves while training goes on. So: if a gradient is
infinite or NaN, skip the step and halve the scale; after N clean steps in a row, double it. The
scale walks along the edge of overflow. Each doubling costs N clean steps and each skip takes one,
which bounds the skips of any run of T steps, whatever its gradients are:

    skips <= (T - N log2(S_T / S_0)) / (N + 1)

A scale below which the gradients fit must exist for this to end. If it is the *forward* pass that
overflows, the loss is infinite or NaN at any scale, every step is skipped and the scale halves
without end. A scale that falls and falls is a symptom; its cause is elsewhere.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from floatscope.lab.base_model import CharGPT, get_batch, loss_of
from floatscope.lab.lecture.records import ScaledStep, Scaling, ScalingRun
from floatscope.lab.watch import Watch, unwatched
from floatscope.recipes import LossScaling, recipe
from floatscope.recipes.loss_scaling import LossScaleCollapse
from floatscope.recipes.train_step import TrainStep

STEPS, BATCH_SIZE, LR = 40, 8, 1e-4
SCALING = LossScaling(initial=2.0**24, growth_interval=10)  # too large a start, on purpose
RECIPE = replace(recipe("fp16-O2"), loss_scaling=SCALING)  # fp16 weights and an fp32 master
TOO_LOUD = 2.0**17  # any logit of 1/2 and more overflows fp16


def scaling(base: CharGPT, data: Tensor, *, watch: Watch = unwatched) -> Scaling:
    """The ordinary run, and one whose logits overflow."""
    return Scaling(
        growth_interval=SCALING.growth_interval,
        floor_exponent=exponent_of(SCALING.floor),
        ordinary=run(base, data, watch=watch),
        overflowing=run(base, data, logits_times=TOO_LOUD, steps=2 * STEPS, watch=watch),
    )


def run(
    base: CharGPT, data: Tensor, *, logits_times: float = 1.0, steps: int = STEPS, watch: Watch
) -> ScalingRun:
    """Go on training a copy of the base model, all in fp16 but the master weights."""
    model = copy.deepcopy(base).half()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1, foreach=False
    )
    step = TrainStep(model, optimizer, RECIPE, backend="emulated")
    generator = torch.Generator().manual_seed(2)
    steps_done: list[ScaledStep] = []
    final, collapsed = exponent_of(SCALING.initial), False
    with watch("dynamic loss scaling", steps) as done:
        for _ in range(steps):
            scale = step.loss_scale
            x, y = get_batch(data, BATCH_SIZE, base.config.context, generator)
            try:
                result = step(lambda m, x=x, y=y: loss_of(lambda ids: m(ids) * logits_times, x, y))
            except LossScaleCollapse:  # below the floor no scale would help
                collapsed = True
                break
            final = exponent_of(step.loss_scale)
            used, grew = exponent_of(scale), step.loss_scale > scale
            steps_done.append(
                ScaledStep(exponent=used, skipped=result.skipped, grew=grew, loss=result.loss)
            )
            done(len(steps_done))
    return ScalingRun(steps=tuple(steps_done), final_exponent=final, collapsed=collapsed)


def exponent_of(scale: float) -> int:
    """The k of 2^k."""
    return round(math.log2(scale))
