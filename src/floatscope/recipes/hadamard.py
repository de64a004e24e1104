"""A random Hadamard transform of neighbors along a dimension.

Both operands of a product, turned alike along what it contracts, give the same product up to
rounding; a large element is spread over its neighbors.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from floatscope.rounding import StochasticKey
from floatscope.rounding.on_cpu import BITS, address_of
from floatscope.rounding.outputs import has_values
from floatscope.rounding.pages import fresh
from floatscope.rounding.random_bits import random_bits
from floatscope.rounding.threads import share

PIECE = 1 << 17
"""Elements that a thread takes at a time."""


def turned(x: Tensor, size: int, axis: int, seed: int, room: Tensor | None = None) -> Tensor:
    """Transform every `size` neighbors along `axis` (-1 or -2), in fp32.

    The result is fl(fl(sum of ± neighbors) / sqrt(size)), where the sum is that of the fast
    transform: neighbors 1, 2, 4, … apart are added and subtracted. Signs follow from the seed. A
    rest of fewer than `size` neighbors is left as it is.

    Args:
        x: what is transformed.
        size: of the transform, a power of two.
        axis: along which dimension.
        seed: of the signs.
        room: flat fp32 memory for as many elements, which the result may be in.

    Returns:
        A contiguous fp32 tensor of the shape of `x`.
    """
    if x.ndim == 2 and x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16):
        for memory, is_transposed in ((x, False), (x.mT, True)):
            down = axis == (-1 if is_transposed else -2)
            if down and memory.is_contiguous() and memory.shape[0] % size == 0 and x.numel():
                return _by_kernel(memory, size, seed, is_transposed, room)
    return _anywhere(x, size, axis, seed)


def _by_kernel(
    memory: Tensor, size: int, seed: int, is_transposed: bool, room: Tensor | None
) -> Tensor:
    """Along the rows of a contiguous matrix; the result is transposed if the matrix was."""
    from floatscope.recipes.kernels.numba_hadamard import Turn, turn_region

    rows, columns = memory.shape
    room = (
        fresh(torch.Size([memory.numel()]), torch.float32, memory.device) if room is None else room
    )
    out = room.view((columns, rows) if is_transposed else (rows, columns))
    if has_values(memory):
        signs = np.array(signs_of(size, seed), np.float32)
        job = Turn(
            size=rows // size, piece=max(PIECE // (size * columns), 1), one=1,
            x=memory.data_ptr(), out=out.data_ptr(), signs=address_of(signs), group=size,
            columns=columns, factor=size**-0.5, transposed=is_transposed,
        )  # fmt: skip
        share(turn_region(BITS[memory.dtype]), job)
    return out


def _anywhere(x: Tensor, size: int, axis: int, seed: int) -> Tensor:
    """The same additions by Torch's operations, on any device and of any shape."""
    moved = x.float().movedim(axis, -1)
    whole = moved.shape[-1] // size * size
    groups = moved[..., :whole].unflatten(-1, (-1, size)) if whole else moved[..., :0]
    values = groups * torch.tensor(signs_of(size, seed), device=x.device) if whole else groups
    step = 1
    while step < size and whole:
        pairs = values.unflatten(-1, (-1, 2, step))
        a, b = pairs.unbind(-2)
        values = torch.stack((a + b, a - b), -2).flatten(-3)
        step *= 2
    head = (values * float(np.float32(size**-0.5))).flatten(-2) if whole else values
    return torch.cat((head, moved[..., whole:]), -1).movedim(-1, axis).contiguous()


@cache
def signs_of(size: int, seed: int) -> tuple[float, ...]:
    """1 or -1 for each of `size` neighbors."""
    value = StochasticKey(seed=seed, role="hadamard").value()
    return tuple(1.0 - 2.0 * (random_bits(value, i) & 1) for i in range(size))
