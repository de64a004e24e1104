"""Demonstration 3: a real model's gradients in fp16, under loss scales from 1 to 2^24.

Backward is linear: a loss times S gives gradients times S, all of them, on the whole way. So S
shifts the gradients along the number line without changing one of their digits, until some fall off
an end: too small an S leaves them among fp16's subnormals and zeros, too large an S makes
infinities, which meet on the way back and become NaN.

The same gradients in fp32, measured once as a spectrum, say how many of them a cast to fp16 would
lose at any S. A real fp16 backward does worse, because it casts at every operation and not at the
end.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from floatscope.lab.base_model import CharGPT, get_batch, loss_of
from floatscope.lab.lecture.compare_gradients import batch_record, scale_row
from floatscope.lab.lecture.records import Gradients
from floatscope.lab.watch import Watch, unwatched
from floatscope.recipes import recipe
from floatscope.recipes.compute import compute
from floatscope.spectrum.spectrum import Spectrum

EXPONENTS = range(0, 25, 4)
BATCH_SIZES = (32, 256)


def gradients(
    base: CharGPT,
    bits: float,
    data: Tensor,
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    watch: Watch = unwatched,
) -> Gradients:
    """One batch of each size, backward in fp32 and in fp16 at every scale."""
    batches = []
    with watch("real fp16 gradients", len(batch_sizes) * len(EXPONENTS)) as done:
        for size in batch_sizes:
            x, y = get_batch(data, size, base.config.context, torch.Generator().manual_seed(0))
            reference, loss = fp32_grads(base, x, y)
            rounded, _ = fp32_grads(copy.deepcopy(base).half().float(), x, y)
            spectrum = Spectrum.of(reference)
            rows = []
            for exponent in EXPONENTS:
                real = fp16_grads(base, x, y, 2.0**exponent)
                rows.append(scale_row(exponent, real, reference, rounded, spectrum))
                done(len(batches) * len(EXPONENTS) + len(rows))
            batches.append(batch_record(size, loss, reference, spectrum, rows))
    return Gradients(bits=bits, batches=tuple(batches))


def fp32_grads(base: CharGPT, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """All gradients in fp32 as one vector, and the loss."""
    model = copy.deepcopy(base)
    loss = loss_of(model, x, y)
    loss.backward()
    return flat(model), loss.item()


def fp16_grads(base: CharGPT, x: Tensor, y: Tensor, scale: float) -> Tensor:
    """All gradients of a forward and backward pass in fp16, unscaled, as one fp32 vector.

    The weights, every activation and every gradient are fp16; the loss alone is fp32, and is
    multiplied by `scale`. Products accumulate in fp32 and are rounded once (emulated).
    """
    model = copy.deepcopy(base).half()
    with compute(recipe("fp16-mixed"), model, backend="emulated"):
        loss = loss_of(model, x, y)
    (loss * scale).backward()
    return flat(model) / scale  # in fp32, where nothing is lost


def flat(model: CharGPT) -> Tensor:
    """All gradients in one fp32 vector."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([grad.float().flatten() for grad in grads])
