"""A figure: a picture that reads without scripts and, where there is one, its live counterpart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from floatscope.report.words import Say


@dataclass(frozen=True, kw_only=True)
class Key:
    """One entry of a legend."""

    label: str
    color: str
    dash: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture with its words; inside the picture are numbers, units and symbols only."""

    name: str
    """Of its file and its anchor."""
    title: Say
    svg: Markup
    """Drawn when the page is built."""
    x: Say | None = None
    y: Say | None = None
    """Titles of the axes."""
    keys: tuple[Key, ...] = ()
    note: Say | None = None
    """What must be known to read it."""
    live: dict[str, Any] | None = None
    """A Vega-Lite specification whose `series` the page turns into rows; None for a picture."""
    columns: tuple[Say, ...] = ()
    table: tuple[tuple[Any, ...], ...] = field(default=())
    """The same numbers as rows."""
