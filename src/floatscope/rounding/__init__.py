"""Rounding into formats: one value exactly, tensors fast, and the choices that every cast makes.

Names that need Torch are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from floatscope.rounding.modes import Overflow as Overflow
from floatscope.rounding.modes import Rounding as Rounding
from floatscope.rounding.random_bits import StochasticKey as StochasticKey
from floatscope.rounding.receipt import Receipt as Receipt
from floatscope.rounding.reference import round_value as round_value
from floatscope.rounding.rules import PRESETS as PRESETS
from floatscope.rounding.rules import Rules as Rules
from floatscope.rounding.rules import rules_for as rules_for

if TYPE_CHECKING:
    from floatscope.rounding.tensors import round_to as round_to

_HOMES = {"round_to": "floatscope.rounding.tensors"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
