"""What storage computes with: working copies, rounded values, Kahan's sum and rest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from floatscope.recipes.movement import parts
from floatscope.rounding.cast import Cast
from floatscope.rounding.pages import fresh
from floatscope.rounding.tensors import round_tensor

KAHAN_PIECE = 1 << 16
"""Elements at a time, whose fp64 temporaries stay in the caches."""


def working_copies(starts: Sequence[tuple[Tensor, bool]]) -> list[Tensor]:
    """What the optimizer starts from, in fp32 and in the strides it has.

    Weights are copied into one allocation, which is quicker than many.

    Args:
        starts: each with whether its copy is going to be kept, as a master's is, and so needs
            memory of its own.
    """
    together: dict[torch.device, int] = {}
    for start, _ in (s for s in starts if not s[1]):
        together[start.device] = together.get(start.device, 0) + start.numel()
    free = {d: fresh(torch.Size([size]), torch.float32, d) for d, size in together.items()}
    copies = []
    for start, stays in starts:
        size = start.numel()
        if stays or not start.is_contiguous():
            copies.append(start.to(torch.float32, copy=True))
            continue
        taken, free[start.device] = free[start.device][:size], free[start.device][size:]
        copies.append(taken.view(start.shape).copy_(start))
    return copies


def rounded(x: Tensor, cast: Cast | None) -> Tensor:
    """A new tensor of rounded values in the dtype of `x`, or `x` itself for fp32."""
    return x if cast is None else round_tensor(x, cast)


def kahan(aimed: Tensor, rest: Tensor, cast: Cast | None) -> tuple[Tensor, Tensor]:
    """The weights nearest to aimed + rest, and what is left, in the dtype of `rest`."""
    assert cast is not None, "fp32 weights have no rest"
    shape, dtype = rest.shape, rest.dtype
    aimed, rest = aimed.reshape(-1), rest.reshape(-1)
    new, left = torch.empty_like(rest), torch.empty_like(rest)
    for part in parts(rest.numel(), KAHAN_PIECE):
        exact = aimed[part].double() + rest[part]
        weight = round_tensor(exact, cast, dtype=dtype)
        new[part] = weight
        # Nothing is left of a weight that is not finite, and nothing else is infinite or NaN here.
        left[part] = round_tensor(exact.sub_(weight), cast, dtype=dtype).nan_to_num_(0.0, 0.0, 0.0)
    return new.view(shape), left.view(shape)
