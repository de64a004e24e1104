"""What `floatscope memory trace` and `measure` print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from floatscope.cli.memory_advice import advice_parts
from floatscope.cli.memory_tables import (
    SIXTEEN,
    WORDS,
    arm_table,
    bullets,
    device_table,
    differences,
    gigabytes,
    unit_of,
)
from floatscope.lab.memory.optimizers import OPTIMIZERS, keeps_fp32
from floatscope.lab.memory.record import rounding
from floatscope.lab.memory.witnesses import acceptance
from floatscope.memory.between import is_engines
from floatscope.memory.ledger import Stage
from floatscope.memory.units import GIB, mib, unit_for

if TYPE_CHECKING:
    from floatscope.lab.memory.neighbors import Neighbors
    from floatscope.lab.memory.target import Target
    from floatscope.lab.memory.witnesses import Arm
    from floatscope.memory.measurement import Measurement


def shown(
    target: Target,
    arms: Sequence[Arm],
    seen: Sequence[Neighbors],
    said: Sequence[str],
    advice: dict[str, Any],
) -> Group:
    """Tables, waterfalls and words of all recipes."""
    parts: list[RenderableType] = []
    for index, arm in enumerate(arms):
        assert arm.best is not None
        title = f"{target.spec.model}, {arm.recipe} ({arm.best.backend})"
        parts += [arm_table(arm, title), Text("")]
        rounded = [asdict(figure) for figure in rounding(arm)]
        if arm.device:
            parts += [device_table([*arm.device, *rounded]), Text("")]
        parts += advice_parts(advice.get(arm.recipe), unit_of(arm))
        lines = [
            *highest(arm.best),
            *differences(arm),
            *(f"{a.what}: {a.says}." for a in acceptance(arm, target)),
        ]
        lines += _engine(arm.best)
        if rounded and not arm.device:
            lines.append(f"The allocator's rounding: 0 bytes. {rounded[0]['meaning']}.")
        if arm.peak_rss_bytes:
            lines.append(
                f"Resident set of the measuring process: {mib(arm.peak_rss_bytes)} MiB at most, "
                "interpreter and libraries included: a bound, not an account."
            )
        if index < len(seen):
            lines.append(_company(seen[index]))
        parts += [bullets(lines), Text("")]
    shape = ", ".join(f"{name} {value}" for name, value in target.shape.items())
    said = [*([f"Shape: {shape}."] if shape else []), *said]
    return Group(*parts, bullets([*said, *target.notes, *closing(target, arms)]))


def highest(best: Measurement) -> Iterator[str]:
    """The highest peak, and by how much a single step would understate it."""
    most = best.peak
    size = most.peak.total
    unit, (gb, gib) = unit_for(size), gigabytes(size)
    said = f"The highest peak, in the {most.stage}: {size:,} bytes = "
    said += f"{gib} GiB = {gb} GB" if size >= GIB else f"{unit.of(size)} {unit.name}"
    less = size - best[Stage.BACKWARD].peak.total
    if most.stage is Stage.BACKWARD_2 and less > 0:
        said += (
            f"; the first backward's is {unit.of(less)} {unit.name} lower, before the optimizer's "
            "first step"
        )
    yield f"{said}."


def _engine(best: Measurement) -> Iterator[str]:
    """What the engine of recipes holds for itself, if anything."""
    most = max(best.stages, key=lambda stage: stage.engine)
    if most.engine:
        at_peak = sum(row.bytes for row in best.peak.peak if is_engines(row))
        yield (
            "The engine's own tensors, fp32 copies of emulation and quantized operands: at most "
            f"{mib(most.engine)} MiB at one moment, in the {most.stage}; at the highest peak "
            f"{mib(at_peak)} MiB."
        )


def closing(target: Target, arms: Sequence[Arm]) -> Iterator[str]:
    """The words under every table."""
    yield WORDS
    is_adam = OPTIMIZERS[target.spec.optimizer][0] in ("AdamW", "Adam")
    if is_adam and any(keeps_fp32(arm.recipe) for arm in arms):
        yield SIXTEEN
    if any(arm.best is not None and arm.best.backend == "emulated" for arm in arms):
        yield (
            "Emulated: 16-bit products are computed in fp32. What is saved is what a device with "
            "16-bit units saves; peaks may hold the emulation's fp32 copies, a row of their own."
        )
    yield (
        "After the first step activations are gone; a device whose allocator keeps freed blocks "
        "still shows them as reserved, and its peak counters until they are reset."
    )


def _company(one: Neighbors) -> str:
    if one.alone:
        return f"Alone on this machine when it began; load {one.load:.2f}."
    others = ", ".join((*one.busy, *one.on_device))
    return f"Not alone when it began: {others}; load {one.load:.2f}. Bytes do not depend on it."
