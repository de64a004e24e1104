"""Shape and training of the base model, apart from the model itself so that they need no Torch."""

from __future__ import annotations

from dataclasses import dataclass

from floatscope.lab.text.world import ALPHABET


@dataclass(frozen=True, kw_only=True)
class BaseConfig:
    """Shape of the character GPT; the defaults have 110 400 parameters."""

    vocab_size: int = len(ALPHABET)
    context: int = 96
    """Longest sequence, in characters."""
    num_layers: int = 2
    width: int = 64
    num_heads: int = 4

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the character GPT is trained."""

    steps: int = 3000
    batch_size: int = 32
    peak_lr: float = 3e-3
    """Learning rate of the first step; a cosine takes it down to a tenth (see `lr_at`)."""
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    seed: int = 0
    """Of the initial weights; the batches are drawn from seed + 1."""


BASE_CONFIG = BaseConfig()
BASE_TRAINING = Training()
