"""What a recipe did to a model's products, and what quantization remembers between steps."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from floatscope.recipes.formats_of import ProductName

PassName = Literal["forward", "backward"]


@dataclass
class Report:
    """What was converted, and what was left. It grows until backward is done.

    A block that activation checkpointing recomputes is counted again, as forward, and as forward is
    counted a gradient that is differentiated itself.
    """

    converted: Counter[tuple[str, ProductName]] = field(default_factory=Counter)
    """Products with the recipe's own operands, by weight and kind."""
    padded: Counter[tuple[str, ProductName]] = field(default_factory=Counter)
    """Of these, how many have an operand that its blocks do not divide: the last block is shorter,
    as if it were padded with zeros."""
    native: Counter[tuple[str, ProductName]] = field(default_factory=Counter)
    """Of these, how many the device's fp8 units multiplied; the others were emulated."""
    not_native: Counter[str] = field(default_factory=Counter)
    """On a device with such units, why products of these were left to emulation."""
    kept: dict[str, str] = field(default_factory=dict)
    """Weights whose products were left alone, and why."""
    without_weight: int = 0
    """Products of which no operand is a weight, such as attention's, in forward and backward, if
    the recipe has operands of its own."""
    emulated: Counter[PassName] = field(default_factory=Counter)
    """16-bit products computed in fp32 and rounded once; with the backend "native", none."""
    left: Counter[str] = field(default_factory=Counter)
    """Products in another dtype than the recipe's, such as rotary angles that a model computes in
    fp32, and other libraries' operations, which may multiply; by operation and dtype."""

    def add(self, other: Report) -> None:
        """Add what was done to another part of the same step, such as a micro-batch."""
        self.converted += other.converted
        self.padded += other.padded
        self.native += other.native
        self.not_native += other.not_native
        self.kept = {**other.kept, **self.kept}
        self.without_weight += other.without_weight
        self.emulated += other.emulated
        self.left += other.left


@dataclass
class Memory:
    """What quantization remembers from step to step."""

    seed: int = 0
    """Of stochastic rounding and of the Hadamard transform's signs."""
    step: int = 0
    largest: dict[str, list[float]] = field(default_factory=dict)
    """By operand, the largest finite magnitudes of the last steps, for delayed scaling."""

    def __post_init__(self) -> None:
        self._decided: dict[str, tuple[int, float]] = {}
        self.micro_step = 0
        """Of the micro-batches of a step, which is under way; stochastic rounding differs."""

    def amax(self, name: str, own: float, history: int) -> float:
        """The largest magnitude of the steps before; of this call, if it was 0 in all of them.

        It is decided once a step, so that a product computed again gets the same.

        Args:
            name: of the operand.
            own: the largest magnitude of this call; passed over if it is infinite or NaN.
            history: steps to remember, this one included.
        """
        own = own if math.isfinite(own) else 0.0
        seen = self.largest.setdefault(name, [])
        if self._decided.get(name, (-1, 0.0))[0] != self.step:
            self._decided[name] = self.step, max(seen, default=0.0)
            seen.append(0.0)
            del seen[:-history]
        seen[-1] = max(seen[-1], own)
        return self._decided[name][1] or own
