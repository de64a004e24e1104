"""The course document's function for one training of demonstration 5."""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope.lab.base_model import Training
from floatscope.lab.lecture.demo5_master import STEPS, Arm, train_arm
from floatscope.recipes.formats_of import Stored

FORMATS = {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def train_with_storage(
    data: Tensor,
    val: Tensor,
    storage: torch.dtype | None,
    master: bool,
    steps: int = STEPS,
    lr: float = 3e-3,
    seed: int = 0,
) -> float:
    """Train the base model's architecture from scratch, its weights stored in 16 bits.

    Args:
        data: the encoded text, int64.
        val: the encoded validation text, int64.
        storage: `torch.bfloat16`, `torch.float16`, or None for fp32.
        master: whether updates go to fp32 masters, of which the weights are rounded copies.
        steps: of the training.
        lr: of the first step; a cosine takes it down to a tenth.
        seed: of the initial weights; the batches are drawn from seed + 1.

    Returns:
        Bits a character on the validation text.
    """
    form = FORMATS[storage]
    stored = Stored(weights=form, master="fp32" if master and storage else "")
    training = Training(steps=steps, peak_lr=lr, seed=seed)
    return train_arm(data, val, Arm(name=form, stored=stored), training).bits
