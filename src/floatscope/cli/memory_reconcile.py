"""`floatscope memory reconcile`: from formula to measurement, and from recipe to recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from floatscope.cli.memory_show import closing
from floatscope.cli.memory_tables import (
    bullets,
    cut,
    differences,
    notes_of,
    table,
    terms_table,
    titled,
)
from floatscope.lab.memory.witnesses import acceptance, steps_between
from floatscope.memory.fit import element_bytes
from floatscope.memory.formula import activations
from floatscope.memory.ledger import Ledger
from floatscope.memory.units import unit_for

if TYPE_CHECKING:
    from floatscope.lab.memory.neighbors import Neighbors
    from floatscope.lab.memory.target import Target
    from floatscope.lab.memory.witnesses import Arm


def reconciled(target: Target, arms: Sequence[Arm]) -> dict[str, Any]:
    """Terms of every recipe and between neighbors, as plain values; sizes in bytes."""
    return {
        "model": target.spec.model,
        "shape": target.shape,
        "arms": [
            {
                "recipe": arm.recipe,
                "terms": _ledger(arm.terms),
                "unexplained_bytes": arm.unexplained,
                "trace_minus_meter": (_traced_differently(arm) or Ledger()).to_dict(),
                "differences": differences(arm),
            }
            for arm in arms
        ],
        "between": [
            {"from": step.before, "to": step.after, "terms": step.saved.to_dict(),
             "peak_terms": step.peaks.to_dict()}
            for step in steps_between(target, arms)
        ],
    }  # fmt: skip


def _ledger(ledger: Ledger | None) -> dict[str, Any] | None:
    return ledger.to_dict() if ledger is not None else None


def _traced_differently(arm: Arm) -> Ledger | None:
    """Saved rows by which the trace differs from the meter, module by module."""
    if arm.traced is None or arm.measured is None:
        return None
    names = ("module", "operation", "dtype")
    return arm.traced.saved.project(*names) - arm.measured.saved.project(*names)


def reconciled_table(target: Target, arms: Sequence[Arm], seen: Sequence[Neighbors]) -> Group:
    """The same for the terminal."""
    parts: list[RenderableType] = []
    for arm in arms:
        parts += _arm(target, arm)
    for step in steps_between(target, arms):
        if any(row.term for row in step.saved):
            title = f"Saved, from {step.before} to {step.after}"
            parts += [terms_table(step.saved, title), Text("")]
        else:
            parts.append(_categories(step.saved, f"Saved, {step.after} minus {step.before}"))
            parts.append(Text(""))
        title = f"The highest peak, from {step.before} to {step.after}"
        parts += [terms_table(step.peaks, title), Text("")]
    lines = list(closing(target, arms))
    if any(not one.alone for one in seen):
        lines.append("Others used the machine meanwhile. Bytes do not depend on it.")
    return Group(*parts, bullets(lines))


def _arm(target: Target, arm: Arm) -> list[RenderableType]:
    assert arm.best is not None
    parts: list[RenderableType] = []
    name = f"{target.spec.model}, {arm.recipe} ({arm.best.backend})"
    if arm.terms is not None:
        title = f"{name}: saved, from the standard block's formula to the meter"
        parts.append(terms_table(arm.terms, title))
    else:
        parts.append(_categories(arm.best.saved, f"{name}: saved"))
    lines = [*differences(arm), *(f"{a.what}: {a.says}." for a in acceptance(arm, target))]
    lines += [
        f"trace minus meter, {cut(row.module or 'the model', 40)} {row.operation} {row.dtype}: "
        f"{row.bytes:+,} bytes saved."
        for row in _traced_differently(arm) or ()
    ]
    if arm.terms is None:
        lines += _standard(target, arm)
    return [*parts, Text(""), bullets([*lines, *notes_of(arm)]), Text("")]


def _standard(target: Target, arm: Arm) -> list[str]:
    """The standard block's figure beside a model that has no closed form."""
    if target.standard is None or arm.best is None:
        return []
    found = activations(target.standard, element_bytes=element_bytes(arm.recipe)).total
    unit = unit_for(max(found, arm.best.saved.total))
    return [
        f"The standard block's formula, for blocks alone, says {unit.of(found)} {unit.name}; saved "
        f"are {unit.of(arm.best.saved.total)} {unit.name}. No closed form names what lies "
        "between; the rows are the account."
    ]


def _categories(ledger: Ledger, title: str) -> Any:
    sizes = ledger.by_category()
    unit = unit_for(max(map(abs, sizes.values()), default=0))
    made = table("category", "bytes", unit.name)
    for category, size in sizes.items():
        made.add_row(str(category), f"{size:,}", unit.of(size))
    made.add_row("total", f"{ledger.total:,}", unit.of(ledger.total))
    return titled(title, made)
