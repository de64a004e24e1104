"""Where the blocks of a tensor lie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from floatscope.errors import FormatError
from floatscope.formats import BlockFormat


@dataclass(frozen=True)
class Layout:
    """A contiguous tensor as matrices cut into blocks; those at the edges may be smaller."""

    matrices: int
    rows: int
    columns: int
    height: int
    width: int
    scales_shape: tuple[int, ...]
    whole_tensor: bool = False
    """One scale for everything; the matrix is a single row."""

    @property
    def strips(self) -> int:
        """Rows of blocks in a matrix."""
        return -(-self.rows // self.height)

    @property
    def blocks(self) -> int:
        """Blocks in a strip."""
        return -(-self.columns // self.width)

    @property
    def has_tail(self) -> bool:
        return bool(self.rows % self.height or self.columns % self.width)


@lru_cache(1024)
def layout_of(shape: tuple[int, ...], form: BlockFormat, *, columnwise: bool) -> Layout:
    """The layout of a tensor whose blocks run along its last dimension, or the last but one.

    Raises:
        FormatError: too few dimensions.
    """
    needed = 2 if columnwise or (isinstance(form.block, tuple) and form.block[0] > 1) else 1
    if len(shape) < needed and form.block != "tensor":
        raise FormatError(f"{form.name} blocks need {needed} dimensions; the tensor is {shape}.")
    if form.block == "tensor":
        size = math.prod(shape)
        return Layout(1, 1, size, 1, max(size, 1), (), whole_tensor=True)
    along = shape[-2 if columnwise else -1]
    height, width = (1, max(along, 1)) if isinstance(form.block, str) else form.block
    if columnwise:
        height, width = width, height
    if height == 1:  # rows of all matrices alike
        rows, leading = math.prod(shape[:-1]), shape[:-1]
        return Layout(1, rows, shape[-1], 1, width, (*leading, -(-shape[-1] // width)))
    layout = Layout(math.prod(shape[:-2]), shape[-2], shape[-1], height, width, ())
    scales_shape = (*shape[:-2], layout.strips, layout.blocks)
    return Layout(layout.matrices, shape[-2], shape[-1], height, width, scales_shape)
