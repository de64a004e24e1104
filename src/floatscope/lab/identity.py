"""What of a configuration enters the identity of a run.

A field that came after runs had been published is marked `LATER`; while it holds its default it is
left out, so that the runs it does not change keep their identities.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from types import MappingProxyType
from typing import Any

LATER = MappingProxyType({"later": True})
"""Metadata of such a field: `field(default=..., metadata=LATER)`."""


def said(config: Any) -> dict[str, Any]:
    """The fields of a flat dataclass as a dictionary, without later ones that are as by default."""
    return {f.name: getattr(config, f.name) for f in fields(config) if _counts(config, f)}


def _counts(config: Any, field: Field[Any]) -> bool:
    assert field.metadata is not LATER or field.default is not MISSING
    return field.metadata != LATER or getattr(config, field.name) != field.default
