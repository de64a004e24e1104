"""One training of the character GPT, step by step, under any recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatscope.lab.base_model.config import Training
from floatscope.lab.base_model.data import get_batch
from floatscope.lab.base_model.model import CharGPT
from floatscope.recipes import Recipe
from floatscope.recipes.train_step import StepResult, TrainStep

FINAL_SHARE = 0.1
EVALUATED = 64
"""Windows evaluated at a time."""


def lr_at(step: int, steps: int, peak: float) -> float:
    """Learning rate of a step: a cosine from `peak` at step 0 to a tenth of it after the last."""
    falling = 0.5 * (1 + math.cos(math.pi * step / steps))
    return peak * (FINAL_SHARE + (1 - FINAL_SHARE) * falling)


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """AdamW on all parameters."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=training.peak_lr,
        betas=(training.beta1, training.beta2),
        weight_decay=training.weight_decay,
    )


def loss_of(model: Callable[[Tensor], Tensor], x_BT: Tensor, y_BT: Tensor) -> Tensor:
    """Mean cross-entropy in nats a character, computed in fp32."""
    return F.cross_entropy(model(x_BT).float().flatten(0, 1), y_BT.flatten())


def train(
    model: CharGPT,
    optimizer: torch.optim.Optimizer,
    data: Tensor,
    training: Training,
    recipe: Recipe | str = "fp32",
) -> Iterator[StepResult]:
    """Train, one step for each result that is asked for.

    Args:
        model: to be trained, in place.
        optimizer: on its parameters.
        data: the encoded text, int64.
        training: steps, batches, learning rate.
        recipe: what is computed and stored in which format.
    """
    step = TrainStep(
        model, optimizer, recipe, clip_norm=training.clip_norm, backend="emulated",
        seed=training.seed,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(training.seed + 1)
    for number in range(training.steps):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(number, training.steps, training.peak_lr)
        x, y = get_batch(data, training.batch_size, model.config.context, generator)
        yield step(lambda model, x=x, y=y: loss_of(model, x, y))


@torch.no_grad()
def bits_per_char(model: CharGPT, data: Tensor) -> float:
    """Mean cross-entropy in bits a character, over all whole windows of a text."""
    context = model.config.context
    num = (len(data) - 1) // context
    inputs = data[: num * context].view(num, context)
    targets = data[1 : num * context + 1].view(num, context)
    pairs = zip(inputs.split(EVALUATED), targets.split(EVALUATED), strict=True)
    total = sum(loss_of(model, x, y).item() * len(x) for x, y in pairs)
    return total / num / math.log(2)


@contextmanager
def single_threaded() -> Iterator[None]:
    """One thread inside: sums in one order, and no waiting for a thread that lost its core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
