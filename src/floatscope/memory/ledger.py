"""The ledger: memory as a sum of named rows.

A ledger is a formal sum. Rows that agree in everything but their sizes are one row, so ledgers
add and subtract exactly; a difference has rows of negative bytes, and rows that cancel are gone.
Nothing is ever changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from floatscope.errors import LedgerError, unknown
from floatscope.memory.units import mib


class Category(StrEnum):
    """What memory is for. Every row has one."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    MASTER = "master weights"
    FIRST_MOMENT = "first moment"
    SECOND_MOMENT = "second moment"
    OPTIMIZER = "other optimizer state"
    ACTIVATIONS = "saved activations"
    CASTS = "16-bit casts"
    LOSS = "logits and loss temporaries"
    TEMPORARIES = "other temporaries"
    OPTIMIZER_TEMPORARIES = "optimizer temporaries"
    BUFFERS = "buffers"
    INPUT = "input"
    WORKSPACE = "workspace"
    UNEXPLAINED = "unexplained"


class Lifetime(StrEnum):
    """How long a row's bytes stay allocated."""

    RUN = "whole run"
    GRADIENT = "backward to zero_grad"
    SAVED = "forward to backward"
    TEMPORARY = "a few operations"
    HELD = "held by the caller"


class Stage(StrEnum):
    """The parts of two training steps, in order. A step's peak is known from the second on.

    Moments are allocated by the first optimizer step, so the first backward peaks lower.
    """

    BUILD = "build"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "first optimizer step"
    ZERO_GRAD = "zero_grad"
    FORWARD_2 = "second forward"
    BACKWARD_2 = "second backward"


NAMES = ("term", "category", "module", "operation", "dtype", "lifetime", "stage")
"""The fields that make two rows the same row."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a ledger."""

    term: str
    """What the bytes hold, such as "softmax output"."""
    category: Category
    bytes: int
    """May be negative, in a difference."""
    module: str = ""
    """Path of the module that saved or made them; empty for the model itself."""
    operation: str = ""
    """The Torch function that saved or made them, such as "rms_norm"."""
    dtype: str = ""
    """Short name, such as "fp32"."""
    lifetime: Lifetime = Lifetime.RUN
    stage: Stage = Stage.BUILD
    """The stage that allocates them first."""
    count: int = 0
    """How many allocations they are; 0 where that is not counted."""
    reason: str = ""
    """Why they are there, or the source of the figure. Not part of the row's name."""

    def __post_init__(self) -> None:
        for name in ("bytes", "count"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise LedgerError(f"{name} of row {self.term!r} must be an integer, not {value!r}.")
        for name, kind in (("category", Category), ("lifetime", Lifetime), ("stage", Stage)):
            value = getattr(self, name)
            if isinstance(value, kind):
                continue
            if value not in tuple(kind):
                raise LedgerError(unknown(name, str(value), [str(k) for k in kind]))
            object.__setattr__(self, name, kind(value))

    @property
    def name(self) -> tuple[str, ...]:
        """Everything but sizes and reason."""
        return tuple(str(getattr(self, n)) for n in NAMES)


@dataclass(frozen=True)
class Ledger:
    """An immutable sum of rows.

    Args:
        rows: in the order in which they are shown; rows of the same name are added up, and the
            first reason is kept.

    Ledgers are equal when their rows are, in any order and whatever their reasons.
    """

    rows: tuple[Row, ...] = field(default=())

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        merged: dict[tuple[str, ...], Row] = {}
        for row in rows:
            name = row.name
            if name in merged:
                one = merged[name]
                row = replace(
                    one,
                    bytes=one.bytes + row.bytes,
                    count=one.count + row.count,
                    reason=one.reason or row.reason,
                )
            merged[name] = row
        kept = tuple(row for row in merged.values() if row.bytes or row.count)
        object.__setattr__(self, "rows", kept)

    @property
    def total(self) -> int:
        """Bytes of all rows."""
        return sum(row.bytes for row in self.rows)

    @property
    def unexplained(self) -> int:
        """Bytes of the rows that nothing explains; a correct ledger has 0."""
        return sum(abs(row.bytes) for row in self.rows if row.category is Category.UNEXPLAINED)

    def by_category(self) -> dict[Category, int]:
        """Bytes by category, in the order of `Category`; categories without a row are left out."""
        totals = {c: [r.bytes for r in self.rows if r.category is c] for c in Category}
        return {category: sum(sizes) for category, sizes in totals.items() if sizes}

    def where(self, **names: str | Iterable[str]) -> Ledger:
        """The rows whose fields have the given value, or one of the given values.

        Raises:
            LedgerError: no such field.
        """
        wanted = {n: {v} if isinstance(v, str) else set(v) for n, v in names.items()}
        _check(wanted)
        return Ledger(
            row for row in self.rows if all(getattr(row, n) in v for n, v in wanted.items())
        )

    def group(self, *names: str) -> dict[tuple[str, ...], Ledger]:
        """The rows by the values of the given fields, in order of first appearance.

        Raises:
            LedgerError: no such field.
        """
        _check(names)
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            groups.setdefault(tuple(str(getattr(row, n)) for n in names), []).append(row)
        return {key: Ledger(rows) for key, rows in groups.items()}

    def project(self, *names: str) -> Ledger:
        """The same bytes with only the given fields told apart, and always the category.

        Two witnesses that word their terms differently are compared so:
        `a.project("module", "operation") - b.project("module", "operation")`.

        Raises:
            LedgerError: no such field.
        """
        _check(names)
        blank: dict[str, Any] = {"term": "", "module": "", "operation": "", "dtype": ""}
        blank |= {"lifetime": Lifetime.RUN, "stage": Stage.BUILD}
        dropped = {n: v for n, v in blank.items() if n not in names}
        return Ledger(replace(row, **dropped) for row in self.rows)

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger((*self.rows, *other.rows)) if isinstance(other, Ledger) else NotImplemented

    def __neg__(self) -> Ledger:
        return Ledger(replace(row, bytes=-row.bytes, count=-row.count) for row in self.rows)

    def __sub__(self, other: Ledger) -> Ledger:
        return self + -other if isinstance(other, Ledger) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        return self._sizes() == other._sizes()

    def __hash__(self) -> int:
        return hash(frozenset(self._sizes().items()))

    def _sizes(self) -> dict[tuple[str, ...], tuple[int, int]]:
        return {row.name: (row.bytes, row.count) for row in self.rows}

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def table(self, *names: str) -> list[tuple[str, ...]]:
        """Cells of a table: the given fields, bytes, MiB, and last the total.

        Without a field, by category. Bytes have thousands separators; MiB two decimals.

        Raises:
            LedgerError: no such field.
        """
        names = names or ("category",)
        cells = [
            (*key, f"{part.total:,}", mib(part.total)) for key, part in self.group(*names).items()
        ]
        blanks = ("",) * (len(names) - 1)
        return [*cells, ("total", *blanks, f"{self.total:,}", mib(self.total))]

    def waterfall(self, *names: str) -> list[tuple[str, int, int]]:
        """Steps of a waterfall: a label, signed bytes, and the running sum after them.

        Without a field, by category.

        Raises:
            LedgerError: no such field.
        """
        steps, running = [], 0
        for key, part in self.group(*(names or ("category",))).items():
            running += part.total
            steps.append((" ".join(k for k in key if k), part.total, running))
        return steps

    def to_dict(self) -> dict[str, Any]:
        """The ledger as plain JSON values; sizes in bytes."""
        rows = [asdict(row) for row in self.rows]
        plain = ({k: str(v) if isinstance(v, StrEnum) else v for k, v in r.items()} for r in rows)
        return {"unit": "bytes", "rows": list(plain)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Ledger:
        """The ledger that `to_dict` wrote.

        Raises:
            LedgerError: another unit, or a row with missing, unknown or impossible fields.
        """
        if data.get("unit") != "bytes" or not isinstance(data.get("rows"), list):
            raise LedgerError('a ledger has "unit": "bytes" and a list of "rows".')
        try:
            return Ledger(Row(**row) for row in data["rows"])
        except TypeError as error:
            raise LedgerError(f"not a row of a ledger: {error}") from None


def _check(names: Iterable[str]) -> None:
    for name in names:
        if name not in NAMES:
            raise LedgerError(unknown("field", name, NAMES))
