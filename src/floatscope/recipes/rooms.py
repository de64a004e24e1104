"""Memory for what is made product by product: the same again and again.

The first touch of fresh pages takes as long as quantizing what they will hold.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from floatscope.rounding.pages import fresh


class Rooms:
    """One room for each purpose, as large as it ever had to be."""

    def __init__(self) -> None:
        self._rooms: dict[Hashable, Tensor] = {}

    def like(self, x: Tensor, dtype: torch.dtype, purpose: Hashable) -> Tensor:
        """Flat memory for the elements of `x`, which holds whatever was put there before."""
        room = self._rooms.get((purpose, dtype, x.device))
        if room is None or room.numel() < x.numel():
            room = fresh(torch.Size([x.numel()]), dtype, x.device)
            self._rooms[purpose, dtype, x.device] = room
        return room[: x.numel()]
