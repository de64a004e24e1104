"""The two choices of every cast, each with a name: how to round, and what overflow becomes."""

from __future__ import annotations

from typing import Literal, get_args

from floatscope.errors import FormatError, unknown
from floatscope.formats import FloatFormat

Rounding = Literal[
    "nearest-even", "nearest-away", "toward-zero", "up", "down", "to-odd", "stochastic"
]
"""IEEE 754-2019, section 4.3, and two that it does not have: to odd (an inexact result takes the
neighbor with an odd significand, so that a second rounding does no harm; Boldo & Melquiond 2008)
and stochastic (each neighbor with the probability of its nearness)."""

Overflow = Literal["saturate", "to_inf", "to_nan", "raise"]
"""What becomes of a result beyond the largest value; infinite inputs follow it too."""


def check_choices(form: FloatFormat, rounding: str, overflow: str) -> None:
    """Refuse choices that do not exist or that the format cannot express.

    Raises:
        FormatError: an unknown name, or infinity or NaN asked of a format without.
    """
    for what, given, choices in (
        ("rounding", rounding, get_args(Rounding)),
        ("overflow policy", overflow, get_args(Overflow)),
    ):
        if given not in choices:
            raise FormatError(unknown(what, given, choices))
    missing = {"to_inf": not form.has_infinity, "to_nan": not form.has_nan}
    if missing.get(overflow):
        raise FormatError(
            f"{form.name} has no {'infinity' if overflow == 'to_inf' else 'NaN'} for overflow="
            f'"{overflow}"; choose "saturate" or "raise".'
        )
