"""A comparison in words: what was measured, what it cannot say, and what a table does not show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from floatscope.lab.compare.records import NOISE, StateComparison
from floatscope.lab.probe.answers import percent
from floatscope.recipes import Recipe
from floatscope.recipes.formats_of import Operand, Operands


def answers(state: StateComparison, recipes: Sequence[Recipe]) -> Iterator[str]:
    """Sentences, each complete by itself.

    Args:
        state: what was found, fp32 first.
        recipes: all that were asked for.
    """
    yield (
        "Measured: one gradient, of one batch at one point of training, against the same model in "
        "fp64. It cannot say what other batches or later steps do, nor whether a training "
        "converges or which loss it ends with."
    )
    floor = state.arms[0].whole
    if not floor.nonfinite:
        yield (
            f"fp32 itself is off by {percent(floor.error)} of the whole: what lies near that is "
            "fp32's own error, not a recipe's."
        )
    else:
        yield (
            f"fp32 itself has {floor.nonfinite} elements that are not finite, and fp64 has none."
        )
    yield from _weights(state)
    yield from _scaled(state)
    yield from _drawn(state, recipes)
    yield from _left(state)
    left_out = state.noise()
    if left_out:
        yield (
            f"Left out of the worst: {_few([row.name for row in left_out])}, which fp32 itself "
            f"misses by more than {percent(NOISE)}; such a gradient is rounding noise."
        )
    if state.without_gradient:
        yield f"Without a gradient: {_few(state.without_gradient)}."
    for name, why in state.refused.items():
        yield f"{name} was refused: {why}"


def _left(state: StateComparison) -> Iterator[str]:
    """What a recipe did not reach."""
    for arm in state.arms:
        if arm.converted == 0:
            kept = ", ".join(f"{name}: {why}" for name, why in arm.kept.items()) or "there is none"
            yield f"{arm.recipe}: no product of a weight was converted ({kept})."
        if arm.left:
            products = _few([f"{count} of {name}" for name, count in arm.left.items()])
            yield f"{arm.recipe}: products left as the model has them: {products}."
    unchanged = [arm.recipe for arm in state.arms[1:] if arm.is_fp32]
    if unchanged:
        yield (
            f"{', '.join(unchanged)}: the gradient is that of fp32 to the bit, so nothing was "
            "converted."
        )


def _weights(state: StateComparison) -> Iterator[str]:
    for stored in state.stored:
        names = [arm.recipe for arm in state.arms if arm.weights == stored.weights]
        if names:
            yield (
                f"{', '.join(names)}: compared at weights rounded to {stored.weights}, as stored, "
                f"with fp64 at the same weights. Rounding them moves the fp64 gradient by "
                f"{percent(stored.error)}, which is not in the table."
            )


def _scaled(state: StateComparison) -> Iterator[str]:
    for arm in state.arms:
        if arm.skipped:
            first = arm.arithmetic["loss_scaling"]["initial"]
            yield (
                f"{arm.recipe}: not finite at its first loss scale, {first:g}; training would skip "
                f"{arm.skipped} step{'s' if arm.skipped > 1 else ''}, and this is the gradient at "
                f"{arm.loss_scale:g}."
            )
        if arm.whole.nonfinite:
            at = f" at a loss scale of {arm.loss_scale:g}" if arm.loss_scale != 1 else ""
            share = percent(arm.whole.nonfinite / arm.whole.elements)
            yield f"{arm.recipe}: {share} of the elements are infinite or NaN{at}."


def _drawn(state: StateComparison, recipes: Sequence[Recipe]) -> Iterator[str]:
    if state.drew:
        yield "The model draws random numbers, as dropout does; every pass drew the same."
    there = {arm.recipe for arm in state.arms}
    kinds = {r.name: _operands(r.operands) for r in recipes if r.name in there}
    noisy = [name for name, kind in kinds.items() if any(o.rounding == "stochastic" for o in kind)]
    if noisy:
        yield f"Rounded stochastically, so this is one draw: {', '.join(noisy)}."
    late = [name for name, kind in kinds.items() if any(o.history for o in kind)]
    if late:
        yield (
            f"{', '.join(late)}: in a first step there is no history, so the scales are the "
            "tensors' own."
        )


def _operands(operands: Operands | None) -> list[Operand]:
    if operands is None:
        return []
    return [o for o in vars(operands).values() if isinstance(o, Operand)]


def _few(names: Sequence[str], num: int = 3) -> str:
    rest = len(names) - num
    return ", ".join(names[:num]) + (f" and {rest} more" if rest > 0 else "")
