"""What a demonstration says, as data in two languages: sentences with their premises, tables.

A sentence states what was found, with the numbers found. It has a premise, which is looked at and
not assumed: where it does not hold, another text is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Language = Literal["en", "zh"]
Grade = Literal["arithmetic", "measured", "reported"]


@dataclass(frozen=True)
class Words:
    """The same in English and in Chinese."""

    en: str
    zh: str

    def of(self, language: Language) -> str:
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """One sentence, and whether its premise held."""

    words: Words
    holds: bool
    """False: the words say what was found instead."""
    grade: Grade
    source: str = ""
    """Of what is reported."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: its first column names the rows, the others hold numbers."""

    title: Words
    header: tuple[Words, ...]
    rows: tuple[tuple[str | Words, ...], ...]
    ends_in_words: bool = False
    """The last column holds sentences rather than numbers."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """Everything that is said of one demonstration, but its numbers."""

    title: Words
    why: Words
    patch: Words
    history: tuple[Sentence, ...]
    calls: str
    """The Torch calls that it uses."""
    caption: Words
    """Of its figure: what the axes and marks are."""


def said(premise: bool, yes: Words, no: Words, grade: Grade = "measured") -> Sentence:
    """`yes` if the premise holds, else `no`."""
    return Sentence(words=yes if premise else no, holds=premise, grade=grade)


def reported(en: str, zh: str, source: str) -> Sentence:
    """What others report."""
    return Sentence(words=Words(en, zh), holds=True, grade="reported", source=source)


def same(text: str) -> Words:
    """What needs no translation."""
    return Words(text, text)


def percent(share: float, digits: int = 3) -> str:
    """A share in percent; never 0 for what is not."""
    if math.isnan(share):
        return "NaN"
    if math.isinf(share):
        return "inf"
    value = 100 * share
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f} %"
    return f"{significant(value, digits)} %"


def significant(value: float, digits: int = 3) -> str:
    """So many significant digits, without an exponent from 1e-4 to 1e5."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    if not -2 <= places <= digits + 4:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(places, 0)}f}"


def power(exponent: int) -> str:
    """A power of two."""
    return f"2^{exponent}"


def grouped(count: int) -> str:
    """A count with its digits in groups of three."""
    return f"{count:,}".replace(",", " ")


def signed(value: float) -> str:
    """A difference in bits, with its sign."""
    return f"{value:+.4f}".replace("-", "−")


def enumerated(parts: Sequence[str]) -> Words:
    """An enumeration."""
    if len(parts) < 2:
        return same("".join(parts))
    return Words(f"{', '.join(parts[:-1])} and {parts[-1]}", "、".join(parts))
