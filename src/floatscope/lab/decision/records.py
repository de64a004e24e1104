"""What a decision says, and the record it is kept in: `decision.json`."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_VERSION = 1
RECORD = "decision.json"

Value = int | float | bool | str | None


@dataclass(frozen=True, kw_only=True)
class Said:
    """The same in two languages."""

    en: str
    zh: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A number, and where in the records it stands."""

    name: str
    value: Value
    """None where the record has none; what JSON cannot hold is a string, as in the records."""
    record: str
    """Path of the file, from the study's folder."""
    field: str
    """What of it: see `cite.py`."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One sentence, and the numbers it rests on."""

    id: str
    text: Said
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What was not measured, and the command that measures it."""

    what: Said
    command: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One of the course document's three questions."""

    id: str
    question: Said
    statements: tuple[Statement, ...]
    missing: tuple[Missing, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """One of the course document's acceptance criteria."""

    id: str
    what: Said
    holds: bool | None
    """None: not measured."""
    text: Said
    evidence: tuple[Evidence, ...]
    missing: Missing | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The recipe that the records speak for."""

    recipe: str | None
    """None: the records speak for none."""
    settled: bool
    """Whether the study's claim is shown for it."""
    because: Said
    against: dict[str, Said]
    """Why not another, by recipe."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the records of a study say to the questions of the course document."""

    schema: int = SCHEMA_VERSION
    study: str
    stated: str
    """When the study's question was stated: "before the runs", "after the runs" and so on."""
    choice: Choice
    answers: tuple[Answer, ...]
    criteria: tuple[Criterion, ...]
    limits: tuple[Said, ...]
    """What a reader must know before believing it."""
