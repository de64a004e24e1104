"""One recipe's memory by up to three witnesses, side by side: closed form, trace, meter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from floatscope.errors import LedgerError, RecipeError, StudyError
from floatscope.lab.memory.apart import measure_apart
from floatscope.lab.memory.optimizers import policy_of
from floatscope.lab.memory.target import Target
from floatscope.memory.between import between_peaks
from floatscope.memory.closed_form import saved
from floatscope.memory.closed_form_stages import live, peak
from floatscope.memory.kept import Way, way_of
from floatscope.memory.ledger import Category, Ledger, Stage
from floatscope.memory.measurement import Measurement
from floatscope.memory.reconcile import between, reconcile
from floatscope.memory.states import Bytes, Policy
from floatscope.memory.trace import trace
from floatscope.memory.units import mib
from floatscope.recipes import recipe as recipe_called

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
    terms = _terms(target, recipe, traced)
    formula = formula_of(target, recipe, traced.backend)
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
        formula=formula_of(target, recipe, measured.backend),
        traced=traced,
        measured=measured,
        terms=_terms(target, recipe, measured),
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
        said = " ".join(str(error).split())[:400].rstrip(".")
        raise LedgerError(
            f"{target.spec.model} raised {type(error).__name__} on tensors without data: {said}. "
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


def saved_by_formula(target: Target, recipe: str, backend: str = "native") -> Ledger | None:
    """What a model saves by its closed form, which is a CPU's; None where there is none.

    Raises:
        RecipeError: no such recipe.
    """
    if target.numbers is None or target.spec.device != "cpu":
        return None
    try:
        return saved(target.numbers, recipe, backend)
    except LedgerError:
        return None


def formula_of(
    target: Target, recipe: str, backend: str = "native"
) -> dict[Stage, tuple[Ledger, Ledger | None]]:
    """The closed form's live and peak by stage.

    Empty where there is none: for other models, other optimizers than AdamW tensor by tensor, other
    devices than the CPU, and recipes and shapes that it does not cover.
    """
    numbers, spec = target.numbers, target.spec
    if numbers is None or saved_by_formula(target, recipe) is None or spec.optimizer != "adamw":
        return {}
    if way_of(recipe_called(recipe), backend) == "storage":
        return {}
    try:
        return {
            stage: (
                live(numbers, recipe, stage),
                None if stage is Stage.BUILD else peak(numbers, recipe, stage),
            )
            for stage in Stage
        }
    except LedgerError:
        return {}


def _terms(target: Target, recipe: str, found: Measurement) -> Ledger | None:
    if target.numbers is None or saved_by_formula(target, recipe, found.backend) is None:
        return None
    return reconcile(target.numbers, recipe, found.saved, found.backend)


@dataclass(frozen=True, kw_only=True)
class Step:
    """From one recipe to the next, in signed terms."""

    before: str
    after: str
    saved: Ledger
    """What is saved: by terms where both have a closed form, else by category."""
    peaks: Ledger
    """The highest peak, by what it consists of."""


def steps_between(target: Target, arms: Sequence[Arm]) -> list[Step]:
    """From each recipe to the next in the list; arms with neither trace nor meter are left out."""
    found = []
    for one, other in pairwise(arm for arm in arms if arm.best is not None):
        assert one.best is not None
        assert other.best is not None
        before = saved_by_formula(target, one.recipe, one.best.backend)
        after = saved_by_formula(target, other.recipe, other.best.backend)
        if before is not None and after is not None:
            terms = between(before, after, one.recipe)
        else:
            terms = (other.best.saved - one.best.saved).project()
        peaks = between_peaks(one.best, other.best, f"{one.recipe}: peak")
        found.append(Step(before=one.recipe, after=other.recipe, saved=terms, peaks=peaks))
    return found


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """One sentence that the figures bear out, or do not."""

    what: str
    holds: bool
    says: str


def acceptance(arm: Arm, target: Target) -> list[Acceptance]:
    """Stage by stage: states, named rows beside them, and activations; nothing unexplained.

    States of fp32 are 16 bytes a parameter under AdamW, 4 of them after build. Activations are gone
    when the first step has ended, so they are after forward minus after build. Empty for models
    that are not the laboratory's.
    """
    found, best = [], arm.best
    if best is None or target.kind != "laboratory":
        return found
    num = sum(target.parameter_sizes())
    held = policy_of(target.spec.optimizer, arm.recipe, best.backend)
    if held is not None:
        way = way_of(recipe_called(arm.recipe), best.backend)
        for stage in (Stage.BUILD, Stage.OPTIMIZER):
            each = _resident(held, stage, way)
            found.append(_states(best[stage].live, stage, int(each * num), f"{each} B x {num:,}"))
    else:
        found += [_unknown_states(best, stage, target) for stage in (Stage.BUILD, Stage.OPTIMIZER)]
    kept = _but_states(best[Stage.FORWARD].live) - _but_states(best[Stage.BUILD].live)
    formula = arm.terms.rows[0] if arm.terms is not None else None
    says = f"after forward minus after build: {mib(kept.total)} MiB of named rows"
    if formula is not None:
        says += f"; the standard block's {formula.term} says {mib(formula.bytes)} MiB"
    found.append(Acceptance(what="activations", holds=arm.unexplained == 0,
                            says=f"{says}; unexplained {arm.unexplained} bytes"))  # fmt: skip
    return found


def _resident(held: Policy, stage: Stage, way: Way) -> Bytes:
    """Bytes a parameter of states when a stage has ended."""
    if stage is Stage.BUILD:
        return held.parameters + held.master
    freed = held.gradients if way == "masters" else 0
    return held.total - held.other - freed


def _but_states(ledger: Ledger) -> Ledger:
    return Ledger(row for row in ledger if row.category not in STATES)


def _unknown_states(best: Measurement, stage: Stage, target: Target) -> Acceptance:
    """States of an optimizer that no formula knows: what was found; nothing can contradict it."""
    live = best[stage].live
    kept = live.where(category=[str(c) for c in (*STATES, Category.OPTIMIZER)])
    parts = ", ".join(f"{category} {size:,} B" for category, size in kept.by_category().items())
    return Acceptance(
        what=f"after {stage}",
        holds=not live.unexplained,
        says=f"no formula knows what {target.spec.optimizer} keeps; by {best.witness}: {parts}",
    )


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
