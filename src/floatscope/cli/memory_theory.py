"""`floatscope memory theory`: what can be said of a model's memory without running it."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from floatscope.cli.memory_tables import SIXTEEN, bullets, cut, paragraph, table, titled, waterfall
from floatscope.errors import LedgerError
from floatscope.lab.memory.optimizers import keeps_fp32, policy_of
from floatscope.lab.memory.target import Target
from floatscope.lab.memory.witnesses import STATES, formula_of, saved_by_formula, trace_of
from floatscope.memory.closed_form import SIZES
from floatscope.memory.formula import RECOMPUTE, activations, around_the_blocks
from floatscope.memory.ledger import Category, Ledger, Row, Stage
from floatscope.memory.states import policy as policy_called
from floatscope.memory.states import states
from floatscope.memory.units import unit_for
from floatscope.recipes import recipe as recipe_called


def theory_of(target: Target, recipe: str) -> dict[str, Any]:
    """What formulas say of a model under a recipe, as plain values; sizes in bytes.

    Where no formula knows what the optimizer keeps, its rows come from a trace and say so.

    Raises:
        LedgerError: the model cannot be made or traced without values.
    """
    sizes = target.parameter_sizes()
    held = policy_of(target.spec.optimizer, recipe)
    if held is not None:
        kept = states(held, sum(sizes))
        note = f"Bookkeeping: {held.source}{f'; {held.note}' if held.note else ''}."
    else:
        kept, note = _traced_states(target, recipe)
    saved = saved_by_formula(target, recipe)
    return {
        "recipe": recipe,
        "parameters": sum(sizes),
        "parameter_tensors": len(sizes),
        "states": kept.to_dict(),
        "states_note": note,
        "standard_block": _standard(target, recipe),
        "closed_form": saved.to_dict() if saved is not None else None,
        "stages": {
            str(stage): {"live": live.total, "peak": peak.total if peak is not None else None}
            for stage, (live, peak) in formula_of(target, recipe).items()
        },
    }


def _traced_states(target: Target, recipe: str) -> tuple[Ledger, str]:
    name = target.spec.optimizer
    try:
        traced = trace_of(target, recipe, "native")[Stage.OPTIMIZER].live
    except LedgerError:
        known = states(policy_called("one-moment"), sum(target.parameter_sizes()))
        note = (
            f"No formula knows what {name} keeps under {recipe}, nor can it be traced: it is left "
            "out; measure."
        )
        return known - known.where(category=str(Category.FIRST_MOMENT)), note
    categories = [str(c) for c in (*STATES, Category.OPTIMIZER)]
    rows = (
        Row(term=str(category), category=category, bytes=size, reason="traced")
        for category, size in traced.where(category=categories).by_category().items()
    )
    return Ledger(rows), f"No formula knows what {name} keeps under {recipe}: its rows are traced."


def _standard(target: Target, recipe: str) -> dict[str, int] | None:
    """The standard block's activations by kind of recomputation, 16-bit; doubled in fp32."""
    if target.standard is None:
        return None
    each = SIZES.get(recipe_called(recipe).products, 4)
    found = {kind: activations(target.standard, None, kind, element_bytes=each).total
             for kind in RECOMPUTE}  # type: ignore[arg-type]  # fmt: skip
    around = around_the_blocks(target.standard, element_bytes=each).total
    return {**found, "around the blocks": around}


def theory_table(target: Target, found: list[dict[str, Any]]) -> Group:
    """Everything that `theory_of` found, for the terminal."""
    parts: list[RenderableType] = []
    for arm in found:
        parts += _arm(target, arm)
    words = [f"The states are those of {target.spec.optimizer}."]
    if any(keeps_fp32(arm["recipe"]) for arm in found):
        words.insert(0, SIXTEEN)
    words += dict.fromkeys(arm["states_note"] for arm in found if arm["states_note"])
    if target.standard is not None:
        words.append(
            "The standard block (Korthikanti et al. 2022, arXiv 2205.05198) has LayerNorm, GELU "
            "four times as wide and three dropouts. It is set beside the model, not taken for it. "
            "Around the blocks: the embedding's dropout, the last norm, the head and fp32 logits."
        )
    if target.numbers is None:
        words.append(
            "This model's own activations have no formula here: `floatscope memory trace` accounts "
            "for every byte without allocating one."
        )
    return Group(*parts, bullets(words))


def _arm(target: Target, arm: dict[str, Any]) -> list[RenderableType]:
    kept = Ledger.from_dict(arm["states"])
    number, tensors = arm["parameters"], arm["parameter_tensors"]
    title = f"{target.spec.model}, {arm['recipe']}: {number:,} parameters in {tensors} tensors"
    unit = unit_for(kept.total)
    made = table("states", "bytes", unit.name, "bytes a\nparameter")
    sizes = {term: part.total for (term,), part in kept.group("term").items()}
    for name, size in {**sizes, "total": kept.total}.items():
        made.add_row(name, f"{size:,}", unit.of(size), f"{size / number:.3g}")
    parts: list[RenderableType] = [titled(title, made), Text("")]
    if arm["standard_block"] is not None:
        unit = unit_for(max(arm["standard_block"].values()))
        standard = table("", "bytes", unit.name)
        for name, size in arm["standard_block"].items():
            row = name if name not in RECOMPUTE else f"recomputation: {name}"
            standard.add_row(row, f"{size:,}", unit.of(size))
        name = "Saved activations by the standard block's formula"
        parts += [titled(name, standard), Text("")]
    if arm["closed_form"] is not None:
        saved = Ledger.from_dict(arm["closed_form"])
        title = "Saved activations by the exact closed form of this model"
        steps = [(cut(label, 34), change, running) for label, change, running in _by_term(saved)]
        parts += [waterfall(steps, title), Text("")]
    if arm["stages"]:
        stages = table("stage", "live", "peak")
        unit = unit_for(max(found["live"] for found in arm["stages"].values()))
        for stage, found in arm["stages"].items():
            peak = "–" if found["peak"] is None else unit.of(found["peak"])
            stages.add_row(stage, unit.of(found["live"]), peak)
        parts += [titled(f"Stages by the closed form, {unit.name}", stages), Text("")]
    if not arm["stages"] and target.numbers is not None:
        parts.append(
            paragraph(
                "The stages' closed form covers adamw, and recipes whose products multiply what "
                "is there and whose weights plain Torch can keep; trace or measure this one."
            )
        )
    return parts


def _by_term(saved: Ledger) -> list[tuple[str, int, int]]:
    """Terms in descending order of size; those below 1 % together."""
    sizes = {term[0]: part.total for term, part in saved.group("term").items()}
    large = {t: s for t, s in sizes.items() if 100 * s >= saved.total}
    steps, running = [], 0
    for term, size in sorted(large.items(), key=lambda item: -item[1]):
        running += size
        steps.append((term, size, running))
    rest = saved.total - running
    return [*steps, ("others", rest, saved.total)] if rest else steps
