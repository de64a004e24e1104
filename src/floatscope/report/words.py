"""What is said in two languages, and how numbers are written in both."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add

from markupsafe import Markup, escape

from floatscope.lab.probe.answers import percent as percent_of_share

LANGUAGES = ("en", "zh")
MINUS = "−"
THIN = "\u202f"
"""Between groups of three digits: a thin space that does not break."""
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Say:
    """A sentence in English and in Chinese; the page shows one of them."""

    en: str
    zh: str

    def __html__(self) -> str:
        return "".join(
            f'<span class="{language}" lang="{language}">{escape(getattr(self, language))}</span>'
            for language in LANGUAGES
        )

    def __add__(self, other: Say) -> Say:
        """Both sentences one after the other; Chinese sets no blank between them."""
        return Say(f"{self.en} {other.en}", f"{self.zh}{other.zh}")


def one_after_another(parts: Iterable[Say | None]) -> Say | None:
    """The sentences that there are, as one text; None if there is none."""
    said = [part for part in parts if part is not None]
    return reduce(add, said) if said else None


def same(text: str) -> Say:
    """What needs no translation: a number, a name."""
    return Say(text, text)


def name(text: str) -> str:
    """A name that somebody chose, kept from turning the direction of what stands around it."""
    return f"\u2068{text}\u2069"


def names(texts: list[str] | tuple[str, ...]) -> Say:
    """An enumeration."""
    if len(texts) < 2:
        return same("".join(map(name, texts)))
    *first, last = map(name, texts)
    return Say(f"{', '.join(first)} and {last}", f"{'、'.join(first)} 和 {last}")


def number(value: float | None, digits: int = 4) -> str:
    """So many decimals; a dash where there is no number."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:,.{digits}f}".replace("-", MINUS).replace(",", THIN)


def signed(value: float | None, digits: int = 4) -> str:
    """A difference, with its sign; what would round to zero keeps its order of magnitude."""
    if value is None or math.isnan(value):
        return "–"
    text = (
        f"{value:+.{digits}f}" if abs(value) >= 0.5 * 10**-digits or not value else f"{value:+.0e}"
    )
    return text.replace("-", MINUS)


def percent(share: float | None) -> str:
    """A share in percent, as the probe writes it."""
    return "–" if share is None or math.isnan(share) else percent_of_share(share)


def power(exponent: int) -> str:
    """A power of two, such as 2⁻²⁴."""
    return f"2{str(exponent).translate(_SUPERSCRIPTS)}"


def grouped(count: int) -> str:
    """A count with its digits in groups of three."""
    return f"{count:,}".replace(",", THIN)


def mebibytes(size: float | None) -> str:
    """Bytes in MiB with two decimals, without the unit."""
    return "–" if size is None else number(size / 2**20, 2)


def isolated(text: object) -> Markup:
    """A name from a record as HTML, with a direction of its own."""
    return Markup("<bdi>{}</bdi>").format(text)
