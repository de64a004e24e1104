"""A random Hadamard transform of neighbors along a dimension.

Both operands of a product, turned alike along what it contracts, give the same product up to
rounding; a large element is spread over its neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.rounding.random_bits import StochasticKey, random_bits


@dataclass(frozen=True)
class Hadamard:
    """Sylvester's transform of every `size` neighbors, after signs that follow from the seed."""

    size: int
    """A power of two."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.size & (self.size - 1):
            raise FormatError(
                f"a Hadamard transform is of a power of two of neighbors, not {self.size}."
            )

    @property
    def factor(self) -> np.float32:
        """What the sum of ± neighbors is multiplied by: fp32's 1 / sqrt(size)."""
        return np.float32(self.size**-0.5)

    @property
    def signs(self) -> NDArray[np.float32]:
        """1 or -1 for each of the neighbors."""
        return _signs(self)


@cache
def _signs(transform: Hadamard) -> NDArray[np.float32]:
    value = StochasticKey(seed=transform.seed, role="hadamard").value()
    signs = [1.0 - 2.0 * (random_bits(value, i) & 1) for i in range(transform.size)]
    return np.array(signs, np.float32)


def turned(x: Tensor, transform: Hadamard, axis: int) -> Tensor:
    """Transform neighbors along `axis`, in fp32.

    The result is fl(fl(sum of ± neighbors) / sqrt(size)), where the sum is that of the fast
    transform: neighbors 1, 2, 4, … apart are added and subtracted. A rest of fewer than `size`
    neighbors is left as it is.

    Returns:
        A contiguous fp32 tensor of the shape of `x`.
    """
    size = transform.size
    moved = x.float().movedim(axis, -1)
    whole = moved.shape[-1] // size * size
    groups = moved[..., :whole].unflatten(-1, (-1, size)) if whole else moved[..., :0]
    values = groups * torch.tensor(transform.signs, device=x.device) if whole else groups
    step = 1
    while step < size and whole:
        pairs = values.unflatten(-1, (-1, 2, step))
        a, b = pairs.unbind(-2)
        values = torch.stack((a + b, a - b), -2).flatten(-3)
        step *= 2
    head = (values * float(transform.factor)).flatten(-2) if whole else values
    return torch.cat((head, moved[..., whole:]), -1).movedim(-1, axis).contiguous()
