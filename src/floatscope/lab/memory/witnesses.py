"""One recipe's memory by up to three witnesses, side by side: closed form, trace, meter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from floatscope.errors import LedgerError, RecipeError, StudyError
from floatscope.lab.memory.apart import measure_apart
from floatscope.lab.memory.optimizers import COVERED, policy_of
from floatscope.lab.memory.target import Target
from floatscope.memory import closed_form
from floatscope.memory.ledger import Category, Ledger, Stage
from floatscope.memory.measurement import Measurement
from floatscope.memory.reconcile import reconcile
from floatscope.memory.trace import trace
from floatscope.memory.units import mib

STATES = (
    Category.PARAMETERS, Category.GRADIENTS, Category.MASTER, Category.FIRST_MOMENT,
    Category.SECOND_MOMENT,
)  # fmt: skip
"""Categories of the 16 bytes a parameter."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What is known of one recipe."""

    recipe: str
    formula: dict[Stage, tuple[Ledger, Ledger | None]] = field(default_factory=dict)
    """The closed form's live and peak by stage; empty where there is none."""
    traced: Measurement | None = None
    measured: Measurement | None = None
    terms: Ledger | None = None
    """From the standard block's formula to what is saved; None where there is no closed form."""
    peak_rss_bytes: int = 0
    """Of the measuring process, its libraries included; 0 where nothing was measured."""
    device: tuple[dict[str, Any], ...] = ()
    """The accelerator's own figures by stage."""
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Measurement | None:
        """The meter's figures, else the trace's."""
        return self.measured or self.traced

    @property
    def unexplained(self) -> int:
        """Bytes without an explanation in any stage, or between closed form and measurement."""
        found = sum(s.live.unexplained for s in self.best.stages) if self.best else 0
        return found + (self.terms.unexplained if self.terms is not None else 0)


def traced_arm(target: Target, recipe: str, backend: str = "auto") -> Arm:
    """The formula's and the trace's figures.

    Raises:
        LedgerError: the model cannot be traced, or its step raised.
    """
    traced = trace_of(target, recipe, backend)
    terms = _terms(target, recipe, traced.saved)
    formula = formula_of(target, recipe)
    return Arm(recipe=recipe, formula=formula, traced=traced, terms=terms)


def measured_arm(target: Target, recipe: str, backend: str = "auto", spare: int = 0) -> Arm:
    """All three; the meter in a process of its own.

    Args:
        target: what to measure.
        recipe: name of a recipe.
        backend: "auto", "native" or "emulated".
        spare: bytes of memory that are free; 0 measures whatever the trace says.

    Raises:
        LedgerError: the trace says that the model does not fit, or the measurement failed.
    """
    notes = []
    try:
        traced = trace_of(target, recipe, backend)
    except LedgerError as error:
        traced = None
        notes.append(f"no trace: {error}")
    if traced is not None and spare and target.spec.device == "cpu":
        _check_fits(traced, recipe, spare)
    answer = measure_apart(target.spec, recipe, backend)
    measured = Measurement.from_dict(answer["measurement"])
    return Arm(
        recipe=recipe,
        formula=formula_of(target, recipe),
        traced=traced,
        measured=measured,
        terms=_terms(target, recipe, measured.saved),
        peak_rss_bytes=answer["peak_rss_bytes"],
        device=tuple(answer["device"]),
        notes=tuple(notes),
    )


def trace_of(target: Target, recipe: str, backend: str) -> Measurement:
    """The trace of two steps.

    Raises:
        LedgerError: see `trace`; what the model's own code raises is its cause.
        RecipeError: no such recipe.
    """
    try:
        return trace(target.workload(recipe, backend))
    except (LedgerError, RecipeError, StudyError):
        raise
    except Exception as error:
        notes = " ".join(getattr(error, "__notes__", []))
        said = " ".join(str(error).split())[:400]
        raise LedgerError(
            f"{target.spec.model} raised {type(error).__name__} on tensors without data: {said} "
            f"{notes} If it runs on real ones, measure it."
        ) from error


def _check_fits(traced: Measurement, recipe: str, spare: int) -> None:
    needed = traced.peak.peak.total
    if needed > spare:
        raise LedgerError(
            f"{recipe} needs {needed / 2**30:,.1f} GiB at its peak, in the stage "
            f"{traced.peak.stage}, and {spare / 2**30:,.1f} GiB are free: it is not measured. "
            "`floatscope memory trace` accounts for every byte of it without allocating."
        )


def has_closed_form(target: Target, recipe: str) -> bool:
    """Whether the saved tensors of a model under a recipe have a closed form, which is a CPU's."""
    return target.numbers is not None and target.spec.device == "cpu" and recipe in COVERED


def formula_of(target: Target, recipe: str) -> dict[Stage, tuple[Ledger, Ledger | None]]:
    """The closed form's live and peak by stage.

    Empty where there is none: for other models, other optimizers than AdamW tensor by tensor, other
    devices than the CPU, and recipes and shapes that it does not cover.
    """
    numbers, spec = target.numbers, target.spec
    if numbers is None or not has_closed_form(target, recipe) or spec.optimizer != "adamw":
        return {}
    try:
        return {
            stage: (
                closed_form.live(numbers, recipe, stage),
                None if stage is Stage.BUILD else closed_form.peak(numbers, recipe, stage),
            )
            for stage in Stage
        }
    except LedgerError:
        return {}


def _terms(target: Target, recipe: str, saved: Ledger) -> Ledger | None:
    if target.numbers is None or not has_closed_form(target, recipe):
        return None
    try:
        return reconcile(target.numbers, recipe, saved)
    except LedgerError:
        return None


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """One sentence that the figures bear out, or do not."""

    what: str
    holds: bool
    says: str


def acceptance(arm: Arm, target: Target) -> list[Acceptance]:
    """Stage by stage: states, named rows beside them, and activations; nothing unexplained.

    States are 16 bytes a parameter under AdamW, 4 of them after build. Activations are gone when
    the first step has ended, so they are after forward minus after build. Empty for models that are
    not the laboratory's.
    """
    found, best = [], arm.best
    if best is None or target.kind != "laboratory":
        return found
    num = sum(target.parameter_sizes())
    held = policy_of(target.spec.optimizer, arm.recipe)
    for stage, each in ((Stage.BUILD, 4), (Stage.OPTIMIZER, held.total if held else None)):
        if each is not None:
            found.append(_states(best[stage].live, stage, int(each * num), f"{each} B x {num:,}"))
    kept = _but_states(best[Stage.FORWARD].live) - _but_states(best[Stage.BUILD].live)
    formula = arm.terms.rows[0] if arm.terms is not None else None
    says = f"after forward minus after build: {mib(kept.total)} MiB of named rows"
    if formula is not None:
        says += f"; the standard block's {formula.term} says {mib(formula.bytes)} MiB"
    found.append(Acceptance(what="activations", holds=arm.unexplained == 0,
                            says=f"{says}; unexplained {arm.unexplained} bytes"))  # fmt: skip
    return found


def _but_states(ledger: Ledger) -> Ledger:
    return Ledger(row for row in ledger if row.category not in STATES)


def _states(live: Ledger, stage: Stage, expected: int, product: str) -> Acceptance:
    states = live.where(category=[str(c) for c in STATES]).total
    rest = live.total - states
    parts = (live - live.where(category=[str(c) for c in STATES])).by_category()
    named = ", ".join(f"{category} {size:,}" for category, size in parts.items())
    says = (
        f"{mib(live.total)} MiB = states {states:,} B ({product}) + {rest:,} B"
        f"{f' ({named})' if named else ''}"
    )
    holds = states == expected and not live.unexplained
    return Acceptance(what=f"after {stage}", holds=holds, says=says)
