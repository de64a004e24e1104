"""What a section of the page is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from floatscope.report.figure import Figure
from floatscope.report.words import Say


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A reading question under a figure, and what the records say."""

    question: Say
    answer: Say | None
    """None: what it needs has not been measured."""
    grade: str = "measured"
    """How well founded it is: "arithmetic", "measured", "reported" or "pending"."""
    command: str = ""
    """What would measure it."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section, ready for its template."""

    name: str
    """Its anchor; its template is `NAME.html`."""
    title: Say
    figures: tuple[Figure, ...] = ()
    answers: tuple[Answer, ...] = ()
    command: str = ""
    """What would measure it; empty where it has been measured."""
    problem: str = ""
    """Why its record cannot be read."""
    spoils: bool = False
    """Hidden until the reader has predicted, or asked to see it."""
    values: dict[str, Any] = field(default_factory=dict)
    """What else its template shows."""
