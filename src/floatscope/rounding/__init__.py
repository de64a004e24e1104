"""Rounding into formats. So far the reference: one value at a time, in exact rationals."""

from floatscope.rounding.modes import Overflow as Overflow
from floatscope.rounding.modes import Rounding as Rounding
from floatscope.rounding.reference import round_value as round_value
