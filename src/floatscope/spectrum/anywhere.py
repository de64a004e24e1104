"""Tallies on every device, by Triton on CUDA and by Torch operations elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from floatscope.rounding.threads import Counts, spread
from floatscope.spectrum.kernels.torch_tally import TYPES, add_tally
from floatscope.spectrum.tally import FP32, Layout

PIECE, CPU_PIECE = 1 << 20, 1 << 15
"""Elements at a time by Torch: integers of 64 bits for each are the largest temporaries.

On the CPU they stay in the caches; and Torch handles so few without threads of its own, which would
not survive a fork.
"""


def tally_anywhere(x: Tensor, layout: Layout) -> Tensor:
    """The tally of a tensor, on its device, without waiting for it.

    Args:
        x: contiguous, of any floating dtype that the layout's float holds, and of any size. On the
            meta device too; so is the tally then.
        layout: FP64 for fp64, else FP32.

    Returns:
        int64, `layout.size` numbers; zeros if `x` is empty. The same whatever computes it.
    """
    return backend_of(x.device, layout)(x.detach().view(-1), layout)


def backend_of(device: torch.device, layout: Layout) -> Callable[[Tensor, Layout], Tensor]:
    """What tallies the tensors of a device."""
    if device.type == "cuda" and layout is FP32 and find_spec("triton"):
        # Only with CUDA: tests run this kernel in Triton's interpreter, and never on a device.
        from floatscope.spectrum.kernels.triton_tally import tally_triton

        return tally_triton
    return tally_torch


def tally_torch(x: Tensor, layout: Layout) -> Tensor:
    """`tally_anywhere` by Torch operations."""
    return (on_threads if x.device.type == "cpu" else by_pieces)(x, layout)


def by_pieces(x: Tensor, layout: Layout) -> Tensor:
    """`tally_torch` on any device: it is handed work, and nothing is asked of it."""
    tally = torch.zeros(layout.size, dtype=torch.int64, device=x.device)
    for start in range(0, x.numel(), PIECE):
        add_tally(x[start : start + PIECE].to(TYPES[layout.width][1]), layout, tally)
    return tally


def on_threads(x: Tensor, layout: Layout) -> Tensor:
    """`tally_torch` on the CPU, by as many threads as Torch uses."""
    largest = [0]

    def piece(start: int, stop: int, counts: Counts) -> None:
        add_tally(x[start:stop].to(TYPES[layout.width][1]), layout, torch.from_numpy(counts))
        largest.append(int(counts[-1]))
        counts[-1] = 0  # because the counts of all threads are added up

    tally = spread(piece, x.numel(), layout.size, CPU_PIECE)
    tally[-1] = max(largest)
    return torch.from_numpy(tally)
