"""What a trace is worth, and what would free memory, in words and as plain values."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from floatscope.cli.memory_tables import bullets, cut, table, titled
from floatscope.errors import FloatscopeError, LedgerError
from floatscope.lab.memory.target import target_of
from floatscope.memory.advice import duplicate_casts, what_ifs
from floatscope.memory.honesty import LARGEST, check
from floatscope.memory.ledger import Stage
from floatscope.memory.units import IN_MIB, Unit
from floatscope.memory.watch import OUTSIDE

if TYPE_CHECKING:
    from floatscope.lab.memory.target import Target
    from floatscope.lab.memory.witnesses import Arm

NAME = 42


def checked(target: Target, arm: Arm, backend: str, tiny: str | None) -> list[str]:
    """The trace held to the meter at a tiny shape, in sentences.

    Args:
        target: what was traced.
        arm: its figures.
        backend: who computes 16-bit products.
        tiny: a function that makes a small model of the same code; None takes what the target
            offers, or a model of the user's own itself where it is small.

    Raises:
        LedgerError: `tiny` is given and is not small, or cannot be run.
    """
    if tiny is not None:
        spec = replace(target.spec, model=tiny, batch_size=None, context=None, attention=None)
        return check(target_of(spec).workload(arm.recipe, backend)).says()
    small = target.tiny
    most = arm.traced.peak.peak.total if arm.traced is not None else LARGEST + 1
    if small is None and most <= LARGEST:
        small = target
    if small is None:
        return [
            "Not held to the meter: there is no tiny shape of this model. Name a function that "
            "makes one with --tiny."
        ]
    try:
        return check(small.workload(arm.recipe, backend)).says()
    except Exception as error:
        if target.kind == "factory" and isinstance(error, LedgerError):
            raise
        name = "" if isinstance(error, FloatscopeError) else f"{type(error).__name__}: "
        return [f"Not held to the meter: the tiny shape failed ({name}{error})."]


def advice_of(arm: Arm) -> dict[str, Any] | None:
    """Casts made twice and replayed peaks, as plain values; None without a trace."""
    if arm.traced is None or arm.traced.history is None:
        return None
    return {
        "duplicate_casts": [asdict(one) for one in duplicate_casts(arm.traced)],
        "what_if": [asdict(one) for one in what_ifs(arm.traced)],
    }


def advice_parts(advice: dict[str, Any] | None, unit: Unit = IN_MIB) -> list[RenderableType]:
    """The same for the terminal."""
    if advice is None:
        return []
    casts, (base, *others) = advice["duplicate_casts"], advice["what_if"]
    parts: list[RenderableType] = []
    if casts:
        parts += [_casts(casts, unit), Text("")]
    made = table("peak, replayed", unit.name, "difference", "then in the")
    made.add_row(base["change"], unit.of(base["peak"]), "", base["stage"])
    for one in others:
        made.add_row(one["change"], unit.of(one["peak"]), unit.of(one["difference"]), one["stage"])
    assumed = (f"{one['change']}: {one['assumes']}." for one in others if one["assumes"])
    return [*parts, titled("What if, without running again", made), bullets(assumed), Text("")]


def _casts(casts: list[dict[str, Any]], unit: Unit) -> Group:
    """Casts by what made their source, layers taken together."""
    total = sum(one["bytes"] for one in casts)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in casts:
        module = re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", one["module"])
        where = "made at build:" if module == OUTSIDE[Stage.BUILD] else module or "the model"
        name = f"{where} {one['operation']}"
        groups.setdefault((name, one["dtype"]), []).append(one)
    made = table("cast of the result of", "to", "tensors", "copies\neach", f"{unit.name} to\nfree")
    for (name, dtype), found in groups.items():
        copies = sorted({len(one["consumers"]) for one in found})
        freed = sum(one["bytes"] for one in found)
        cells = (dtype, str(len(found)), ", ".join(map(str, copies)), unit.of(freed))
        made.add_row(cut(name, NAME), *cells)
    title = (
        f"Casts made more than once: {unit.of(total)} {unit.name} that one shared copy of each "
        "would free. Their sources do not change in between, so the copies hold the same values."
    )
    return titled(title, made)
