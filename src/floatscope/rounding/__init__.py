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
    from floatscope.rounding.blocks import Blocks as Blocks
    from floatscope.rounding.blocks import block_round as block_round
    from floatscope.rounding.codes import decode_from as decode_from
    from floatscope.rounding.codes import encode_to as encode_to
    from floatscope.rounding.codes import pack as pack
    from floatscope.rounding.codes import unpack as unpack
    from floatscope.rounding.finder.find import disagreements as disagreements
    from floatscope.rounding.hadamard import Hadamard as Hadamard
    from floatscope.rounding.tensors import round_to as round_to

_HOMES = {
    "Blocks": "floatscope.rounding.blocks",
    "block_round": "floatscope.rounding.blocks",
    "decode_from": "floatscope.rounding.codes",
    "encode_to": "floatscope.rounding.codes",
    "pack": "floatscope.rounding.codes",
    "unpack": "floatscope.rounding.codes",
    "disagreements": "floatscope.rounding.finder.find",
    "Hadamard": "floatscope.rounding.hadamard",
    "round_to": "floatscope.rounding.tensors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
