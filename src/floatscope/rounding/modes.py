"""The two choices of every cast, each with a name: how to round, and what overflow becomes."""

from __future__ import annotations

from typing import Literal

Rounding = Literal[
    "nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd", "stochastic"
]
"""IEEE 754-2019, section 4.3, and two that it does not have: to odd (an inexact result takes the
neighbor with an odd significand, so that a second rounding does no harm; Boldo & Melquiond 2008)
and stochastic (each neighbor with the probability of its nearness)."""

Overflow = Literal["saturate", "to_inf", "to_nan", "raise"]
"""What becomes of a result beyond the largest value; infinite inputs follow it too."""
