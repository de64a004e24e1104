"""The formats and scales that a probe asks about."""

from __future__ import annotations

FLOAT_FORMATS = ("fp16", "bf16", "e4m3fn", "e5m2")
EXPONENTS = range(25)
"""Scales 2^0 to 2^24."""
BLOCK_FORMATS = ("fp8-tensor", "fp8-1x128", "mxfp8-e4m3", "mxfp8-e5m2", "mxfp6-e3m2", "mxfp4",
                 "nvfp4")  # fmt: skip
