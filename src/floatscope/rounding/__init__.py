"""Rounding into formats: one value exactly, tensors fast, and the choices that every cast makes."""

from floatscope.rounding.modes import Overflow as Overflow
from floatscope.rounding.modes import Rounding as Rounding
from floatscope.rounding.reference import round_value as round_value
from floatscope.rounding.rules import PRESETS as PRESETS
from floatscope.rounding.rules import Rules as Rules
from floatscope.rounding.rules import rules_for as rules_for
