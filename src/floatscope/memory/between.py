"""From one recipe's peak to another's, as signed terms."""

from __future__ import annotations

from collections import Counter

from floatscope.memory.engine import COPIES, QUANTIZED
from floatscope.memory.ledger import Category, Ledger, Lifetime, Row
from floatscope.memory.measurement import Measurement

SAVED = "saved for backward"
OPERANDS = "quantized operands"

_REASONS = {
    SAVED: "what autograd keeps from forward to backward, and holds at the peak",
    OPERANDS: "kept by the engine in bf16 or fp32; a device keeps them in their own format, if at "
    "all",
    COPIES: "of the engine alone, which computes 16-bit products in fp32",
    str(Category.LOSS): "logits and gradients of the loss, in the loss's dtype",
    str(Category.MASTER): "fp32 copies that the optimizer updates",
}


def between_peaks(before: Measurement, after: Measurement, name: str) -> Ledger:
    """The terms that lead from one measurement's highest peak to another's, in bytes.

    Args:
        before: of one recipe.
        after: of another, of the same model and batch.
        name: of the first row, the one peak.
    """
    old, new = (_parts(measurement.peak.peak) for measurement in (before, after))
    first = _row(name, Category.ACTIVATIONS, before.peak.peak.total)
    return Ledger(
        [first, *(_row(*part, new[part] - old[part]) for part in dict.fromkeys((*old, *new)))]
    )


def _parts(peak: Ledger) -> Counter[tuple[str, Category]]:
    """Bytes by what they are for."""
    sizes: Counter[tuple[str, Category]] = Counter()
    for row in sorted(peak, key=lambda row: list(Category).index(row.category)):
        sizes[_named(row)] += row.bytes
    return sizes


def is_engines(row: Row) -> bool:
    """Whether a row is of what the engine of recipes makes for itself."""
    return row.term == COPIES or row.term.startswith(QUANTIZED)


def _named(row: Row) -> tuple[str, Category]:
    if row.term.startswith(QUANTIZED):
        return OPERANDS, Category.CASTS
    if row.term == COPIES:
        return COPIES, Category.TEMPORARIES
    # What is saved says which function saved it.
    if row.lifetime is Lifetime.SAVED and row.operation and row.category is not Category.INPUT:
        return SAVED, Category.ACTIVATIONS
    return str(row.category), row.category


def _row(term: str, category: Category, size: int) -> Row:
    return Row(term=term, category=category, bytes=size, reason=_REASONS.get(term, ""))
