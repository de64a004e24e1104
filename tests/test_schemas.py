"""The published schemas are those of the code."""

from __future__ import annotations

import json
from pathlib import Path

from floatscope.lab.schemas import schemas

PUBLISHED = Path(__file__).parent.parent / "docs" / "schemas"


def test_published_schemas_are_current() -> None:
    """If this fails after an intended change: python -m floatscope.lab.schemas docs/schemas."""
    published = {p.name.removesuffix(".schema.json"): p for p in PUBLISHED.glob("*.json")}
    current = schemas()
    assert published.keys() == {*current, "export-1"}  # see tests/test_report_export.py
    for name, schema in current.items():
        assert json.loads(published[name].read_text()) == schema, name
