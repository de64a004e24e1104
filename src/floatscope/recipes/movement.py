"""How much of an update survived its storage: lost updates and effective descent quality.

With d the change that the optimizer intended and r the change of what is kept, over all parameters,
the quality is <r, d> / |d|²: 1 if storage passes on what was intended, 0 if nothing moved (Collage,
Yu et al. 2024, arXiv 2405.03637, "effective descent quality").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.rounding.threads import spread

WEIGHTS, MASTER, REST = "weights", "master", "rest"
"""What is carried to the next step: the weights alone, a master copy, or weights and their rest."""
MODES = (WEIGHTS, MASTER, REST)
PIECE = 1 << 18
"""Elements a thread takes at a time; sums are added in the order of pieces."""
NUM_NUMBERS = 3


@dataclass(frozen=True, kw_only=True)
class StoredUpdate:
    """What one step's update became in storage, over all parameters that had a gradient.

    What is *carried* is what the next step starts from: the master copy; the weight and its rest
    under Kahan; else the weight. Without master and rest the last two fields repeat the first.
    A value that becomes NaN counts as one that moves.
    """

    of: int
    """Elements whose intended update is not zero."""
    lost: int
    """Of these, how many left no trace: what is carried did not change."""
    quality: float | None
    """<r, d> / |d|², r the change of what is carried; None if d is zero or not finite."""
    unmoved: int
    """Of these, how many left the weight itself, which products use, where it was."""
    weights_quality: float | None
    """<r, d> / |d|², r the change of the weights; noisy where a master or a rest carries more."""


class Movement:
    """Adds up over parameters. On other devices than the CPU nothing waits before `result`."""

    def __init__(self) -> None:
        self._counts: list[Tensor] = []
        self._sums: list[Tensor] = []

    def add(
        self,
        start: Tensor,
        aimed: Tensor,
        old: Tensor,
        new: Tensor,
        *,
        mode: str = WEIGHTS,
        before: Tensor | None = None,
        after: Tensor | None = None,
    ) -> None:
        """Add a parameter; all tensors have its shape.

        Args:
            start: what the optimizer began with.
            aimed: what it made of that, before any rounding to a format.
            old: the weights before the step.
            new: the weights after it.
            mode: what is carried.
            before: the master copy or the rest before the step; without, the weights.
            after: and after it.
        """
        carried = (old, new) if before is None or after is None else (before, after)
        flat = [x.detach().reshape(-1) for x in (start, aimed, old, new, *carried)]
        take = _taken_here if start.device.type == "cpu" else _taken
        sums, counts = take(flat, mode)
        self._sums.append(sums)
        self._counts.append(counts)

    def result(self) -> StoredUpdate:
        """The numbers of everything added; waits for the devices."""
        of, lost, unmoved = (sum(column) for column in _columns(self._counts))
        squares, carried, moved = (_total(column) for column in _columns(self._sums))
        return StoredUpdate(
            of=of,
            lost=lost,
            quality=_quality(carried, squares),
            unmoved=unmoved,
            weights_quality=_quality(moved, squares),
        )


def _columns(rows: list[Tensor]) -> list[list[Any]]:
    """The three numbers of each parameter, by number; one transfer a device."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for row in rows:
        by_device.setdefault(row.device, []).append(row)
    numbers = [row for some in by_device.values() for row in torch.stack(some).tolist()]
    return [list(column) for column in zip(*numbers, strict=True)] or [[]] * NUM_NUMBERS


def _total(numbers: list[float]) -> float:
    return math.fsum(numbers) if all(map(math.isfinite, numbers)) else math.nan


def _quality(product: float, squares: float) -> float | None:
    return product / squares if squares > 0 and math.isfinite(product) else None


def _taken_here(flat: list[Tensor], mode: str) -> tuple[Tensor, Tensor]:
    from floatscope.recipes.kernels import numba_movement

    size = flat[0].numel()
    start, aimed, old, new, before, after = (x.float().numpy() for x in flat)
    sums = np.zeros((-(-size // PIECE), NUM_NUMBERS))
    number = MODES.index(mode)

    def piece(first: int, last: int, counts: NDArray[np.int64]) -> None:
        numba_movement.movement(
            start, aimed, old, new, before, after, number, first, last, sums[first // PIECE], counts
        )

    counts = spread(piece, size, NUM_NUMBERS, PIECE)
    return torch.from_numpy(sums.sum(0)), torch.from_numpy(counts)


def _taken(flat: list[Tensor], mode: str) -> tuple[Tensor, Tensor]:
    """The same in Torch's operations, for every device."""
    sums = torch.zeros(NUM_NUMBERS, dtype=torch.float64, device=flat[0].device)
    counts = torch.zeros(NUM_NUMBERS, dtype=torch.int64, device=flat[0].device)
    for part in parts(flat[0].numel(), 1 << 24):
        start, aimed, old, new, before, after = (x[part].double() for x in flat)
        intended, moved, carried = aimed - start, new - old, after - before
        wanted, unmoved, lost = aimed != start, new == old, after == before
        if mode == REST:
            carried, lost = moved + carried, lost & unmoved
        some = (wanted, wanted & lost, wanted & unmoved)
        counts += torch.stack([torch.count_nonzero(x) for x in some])
        sums += torch.stack([(x * intended).sum() for x in (intended, carried, moved)])
    return sums, counts


def parts(size: int, piece: int = PIECE) -> Iterator[slice]:
    """Slices that cover so many elements."""
    for first in range(0, size, piece):
        yield slice(first, first + piece)
