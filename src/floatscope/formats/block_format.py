"""Block formats: elements that share a scale."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum

from floatscope.errors import FormatError
from floatscope.formats.float_format import FloatFormat
from floatscope.formats.int_format import IntFormat


class ScaleRule(Enum):
    """How a block's scale follows from its largest magnitude, amax.

    M is the largest element value, E = floor(log2 M). The first four give a power of two.
    """

    FLOOR = "floor"
    """2^(floor(log2 amax) - E); clips what lies between M and 2^(E+1). OCP MX 1.0, section 6.3."""
    CEIL = "ceil"
    """One more than FLOOR unless amax is a power of two; never clips. torchao."""
    EVEN = "even"
    """FLOOR after rounding amax to the element's precision, half up; clips little. torchao."""
    RCEIL = "rceil"
    """2^ceil(log2(amax / M)), the quotient in fp32; never clips. Transformer Engine, cuBLAS."""
    AMAX = "amax"
    """Values times M / amax, rounded to fp32; the scale is its reciprocal. 1 where amax is zero,
    infinite or NaN. Transformer Engine, current scaling."""
    AMAX_DIVIDE = "amax-divide"
    """Values divided by amax / M in fp32; by 1 where that is zero. DeepSeek-V3."""
    NVFP4 = "nvfp4"
    """amax / M in e4m3, under a second-level fp32 scale of the whole tensor. NVIDIA NVFP4."""


@dataclass(frozen=True)
class BlockFormat:
    """Elements of one format in blocks that share a scale.

    Raises:
        FormatError: a block shape without elements.
    """

    name: str
    _: KW_ONLY
    element: FloatFormat | IntFormat
    block: tuple[int, int] | str
    """(rows, columns), or "row" or "tensor": what one scale covers. (1, 32) is 32 neighbors along
    the dimension that a product contracts."""
    scale: FloatFormat
    rule: ScaleRule
    tensor_scale: FloatFormat | None = None
    """Format of a second-level scale of the whole tensor."""
    source: str = ""

    def __hash__(self) -> int:
        """By name alone, which is quick; equality looks at everything."""
        return hash(self.name)

    def __post_init__(self) -> None:
        if isinstance(self.block, str):
            if self.block not in ("row", "tensor"):
                raise FormatError(f'{self.name}: a block is "row", "tensor" or (rows, columns).')
        elif min(self.block) < 1:
            raise FormatError(f"{self.name}: a block of {self.block} has no elements.")

    @property
    def elements_per_scale(self) -> int | None:
        """Elements that share a scale; None if that depends on the tensor."""
        return None if isinstance(self.block, str) else self.block[0] * self.block[1]

    @property
    def bits_per_value(self) -> float | None:
        """Storage of a value with its share of the scale; None if it depends on the tensor."""
        if self.elements_per_scale is None:
            return None
        return self.element.width + self.scale.width / self.elements_per_scale
