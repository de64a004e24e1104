"""The spectrum of differences in fp64, which a spectrum of fp32 has nearly all of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from floatscope.spectrum.capture.taking import Taken, settled
from floatscope.spectrum.measure import measure

PIECE, DEVICE_PIECE = 1 << 18, 1 << 24
"""Elements at a time: a dozen temporaries in fp64 stay in the caches, or in bounds."""


class Differences:
    """Collects the fp64 differences of a tensor, piece by piece.

    Two fp32 numbers of about the same size have a difference that fp32 holds, and an optimizer
    seldom moves a weight further. On the CPU, where fp64 takes far longer to measure, such
    differences go to the fp32 kernel and only the others are measured in fp64. The sum of both
    spectra is the spectrum of all.

    Args:
        like: the tensor, flat.
    """

    def __init__(self, like: Tensor) -> None:
        self._size = like.numel()
        self._is_here = like.device.type == "cpu"
        self._narrow = torch.empty(self._size if self._is_here else 0, dtype=torch.float32)
        self._wide: list[Tensor] = []
        self._taken: list[Taken] = []

    def parts(self) -> Iterator[slice]:
        """Pieces, one at least."""
        piece = PIECE if self._is_here else DEVICE_PIECE
        for start in range(0, max(self._size, 1), piece):
            yield slice(start, start + piece)

    def add(self, part: slice, difference: Tensor) -> None:
        """Collect a piece."""
        if not self._is_here:
            self._taken.append(settled(measure(difference)))
            return
        narrow = self._narrow[part].copy_(difference)
        fits = (narrow.abs() >= torch.finfo(torch.float32).tiny) | (difference == 0)
        fits &= narrow == difference
        if not bool(fits.all()):
            self._wide.append(difference[~fits])
            narrow.masked_fill_(~fits, 0.0)

    def taken(self) -> list[Taken]:
        """Spectra that add up to that of all differences."""
        if not self._is_here:
            return self._taken
        spectrum = measure(self._narrow).spectrum()
        if self._wide:
            wide = torch.cat(self._wide)
            stand_ins = spectrum.positive_zeros - wide.numel()
            spectrum = replace(spectrum, positive_zeros=stand_ins) + measure(wide).spectrum()
        return [spectrum]
