"""What the disagreement finder found, and how it reads in a terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from floatscope.formats.show import shown
from floatscope.rounding.finder.causes import KINDS, Kind

COLUMN = 36
"""Characters of a column before its text is cut."""


@dataclass(frozen=True)
class Raised:
    """The result of a quantizer that raised an error."""

    error: str
    """Type and message."""

    def __str__(self) -> str:
        return f"raises {self.error}"


Number = float | tuple[float, ...]
"""A number, or the leading elements of a tensor, row by row: up to the last one that is not 0 in
the input and both results."""
Result = Number | Raised


@dataclass(frozen=True)
class Case:
    """An input on which two quantizers differ."""

    kind: Kind
    input: Number
    f: Result
    g: Result


@dataclass(frozen=True)
class Share:
    """How much of a tensor is affected."""

    num_elements: int
    num_different: int
    by_kind: Mapping[Kind, int]

    @property
    def fraction(self) -> float:
        """Part of the elements that differ, of 1; 0 of an empty tensor."""
        return self.num_different / self.num_elements if self.num_elements else 0.0


@dataclass(frozen=True)
class Disagreements:
    """The inputs on which two quantizers differ; true if there are any."""

    form: str
    """The format's name."""
    names: tuple[str, str]
    """What the quantizers are called."""
    cases: tuple[Case, ...]
    """All of them, class by class, those of smallest magnitude first."""
    num_tried: int
    """Inputs tried: numbers, or tensors of a block or two."""
    num_different: Mapping[Kind, int]
    """How many of them differ, by class."""
    share: Share | None = None
    """Of the tensor that was given, if one was."""

    def __bool__(self) -> bool:
        return bool(self.cases)

    def of(self, kind: Kind) -> tuple[Case, ...]:
        """The cases of one class, smallest first."""
        return tuple(case for case in self.cases if case.kind == kind)

    def at(self, value: Number) -> Case | None:
        """The case with exactly this input (NaN is NaN, -0 is not 0), if they differ there."""
        return next((case for case in self.cases if _key(case.input) == _key(value)), None)

    def table(self, per_class: int = 1) -> str:
        """The findings as text.

        Args:
            per_class: how many cases of a class to show.
        """
        differing = sum(self.num_different.values())
        first, second = self.names
        head = f"{first} and {second} in {self.form}: "
        if not differing:
            lines = [f"{head}no difference on {spaced(self.num_tried)} inputs."]
        else:
            lines = [
                f"{head}{spaced(differing)} of {spaced(self.num_tried)} inputs differ.",
                "",
                *_aligned(self._rows(per_class)),
            ]
        if self.share is not None:
            lines += ["", _share_line(self.share)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def _rows(self, per_class: int) -> Iterable[tuple[str, ...]]:
        yield ("class", "inputs", "smallest", *self.names)
        for kind, count in self.num_different.items():
            for i, case in enumerate(self.of(kind)[:per_class]):
                first = (kind, spaced(count)) if i == 0 else ("", "")
                yield (*first, *(_cut(text_of(v)) for v in (case.input, case.f, case.g)))


def spaced(count: int) -> str:
    """A whole number with a space between thousands."""
    return f"{count:,}".replace(",", " ")


def text_of(result: Result) -> str:
    """A result as people read it; what is not exact stands behind "≈"."""
    if isinstance(result, Raised):
        return str(result)
    if not isinstance(result, tuple):
        return _number(result)
    runs = ((text, len(list(group))) for text, group in itertools.groupby(map(_number, result)))
    return ", ".join(text if n == 1 else f"{n} × {text}" for text, n in runs)


def by_kind(counts: Iterable[int]) -> dict[Kind, int]:
    """Counts of every class, in the order of `KINDS`, without those that are 0."""
    return {kind: int(count) for kind, count in zip(KINDS, counts, strict=True) if count}


def _number(value: float) -> str:
    """Exact if it is short, else the shortest digits that name the fp32 or fp64 number."""
    if not math.isfinite(value) or value == 0:
        return shown(value)
    exact = shown(Fraction(value))
    if not exact.startswith("≈"):
        return exact
    with np.errstate(over="ignore", under="ignore"):
        single = np.float32(value)
    return "≈" + str(single if float(single) == value else value)


def _key(value: Number) -> str:
    return repr(value if isinstance(value, tuple) else float(value))


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= COLUMN else line[: COLUMN - 1] + "…"


def _aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _share_line(share: Share) -> str:
    text = f"Of the tensor given, {spaced(share.num_different)} of {spaced(share.num_elements)} "
    text += f"elements differ ({share.fraction:.3%})"
    parts = ", ".join(f"{kind} {spaced(count)}" for kind, count in share.by_kind.items())
    return f"{text}: {parts}." if parts else f"{text}."
