"""What is recorded about gradients: which elements are exactly zero, and where; their spectra.

With a tied head, the embedding rows of tokens absent from the batch are no structural zeros: the
softmax pushes every token's row a little, so in fp32 they hold none. Those pushes are the smallest
gradients of the model, and a 16-bit format loses them first. They are counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from floatscope.lab.run.batches import Batch
from floatscope.spectrum.spectrum import Spectrum


@dataclass(frozen=True, kw_only=True)
class ZeroGradients:
    """Shares of gradient elements that are exactly zero (+0 or -0)."""

    total: float
    absent_rows: float
    """Inside the embedding rows of tokens that are neither input nor target in the batch; NaN if
    there is no such token."""
    elsewhere: float
    num_absent_rows: int


def zero_gradients(model: nn.Module, embedding: Tensor, batch: Batch) -> ZeroGradients:
    """Count exact zeros in every `.grad` of `model`.

    Args:
        model: its parameters hold unscaled gradients; those without a gradient are left out.
        embedding: the parameter (V, D) whose rows belong to tokens.
        batch: what the gradients were computed on.
    """
    absent_V = torch.ones(embedding.shape[0], dtype=torch.bool)
    absent_V[batch.inputs_BT.flatten()] = False
    absent_V[batch.targets_BT.flatten()] = False
    num_absent_rows = int(absent_V.sum())

    zeros = elements = zeros_absent = 0
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        is_zero = parameter.grad == 0
        zeros += int(is_zero.sum())
        elements += is_zero.numel()
        if parameter is embedding:
            zeros_absent = int(is_zero[absent_V].sum())
    elements_absent = num_absent_rows * embedding.shape[1]
    return ZeroGradients(
        total=_share(zeros, elements),
        absent_rows=_share(zeros_absent, elements_absent),
        elsewhere=_share(zeros - zeros_absent, elements - elements_absent),
        num_absent_rows=num_absent_rows,
    )


def gradient_spectra(model: nn.Module) -> dict[str, Spectrum]:
    """The spectrum of every `.grad`, by parameter; those without a gradient are left out."""
    return {
        name: Spectrum.of(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
