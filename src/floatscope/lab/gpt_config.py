"""The shape of a laboratory GPT, apart from the model itself so that plans need no Torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from floatscope.lab.identity import LATER

LARGEST = 1 << 24  # keeps slips of the keyboard from becoming allocations

Attention = Literal["fused", "materialized"]


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """Shape of a laboratory GPT. The defaults are the course project's baseline."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # unknown keys are errors

    vocab_size: int = 2048
    context: int = 256
    """Longest sequence, in tokens."""
    num_layers: int = 4
    width: int = 256
    num_heads: int = 8
    ff_width: int = 688
    attention: Attention = "fused"
    """"fused" is `F.scaled_dot_product_attention`; "materialized" keeps the T x T scores."""
    qk_norm: bool = field(default=False, metadata=LATER)
    """Whether q and k are normalized head by head, before RoPE, which bounds the scores."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "num_layers", "width", "num_heads", "ff_width"):
            if not 1 <= getattr(self, name) <= LARGEST:
                raise ValueError(
                    f"model.{name} must lie between 1 and {LARGEST}, not {getattr(self, name)}"
                )
        if self.width % self.num_heads or (self.width // self.num_heads) % 2:
            raise ValueError(
                f"width {self.width} must split into {self.num_heads} heads of even width "
                "(RoPE rotates pairs)"
            )

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads
