"""Memory for the terminal: tables and waterfalls of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floatscope.memory.ledger import Ledger, Stage
from floatscope.memory.units import GB, GIB, IN_MIB, Unit, mib, unit_for

if TYPE_CHECKING:
    from floatscope.lab.memory.witnesses import Arm

WIDTH = 80
BAR = 30
LABEL = 34

SIXTEEN = (
    "Under autocast every arm holds 16 bytes a parameter: fp32 weight 4, gradient 4, AdamW's two "
    "moments 8. What differs between arms is the products and the activations saved for backward. "
    "The other 16, 2 + 2 + 4 + 8, is another bookkeeping (16-bit weight and gradient, fp32 master, "
    "moments) with the same idea: updates land in fp32."
)
WORDS = (
    "Live: allocated when the stage has ended. Peak: the most at any moment of it. 1 KiB = 2^10, "
    "1 MiB = 2^20, 1 GiB = 2^30, 1 GB = 10^9 bytes. Tensors alone: what an allocator rounds up or "
    "keeps, and the interpreter's own memory, come on top."
)


def table(first: str, *headers: str) -> Table:
    """An empty table whose columns but the first are figures."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    made.add_column(first, vertical="bottom", overflow="fold")
    for header in headers:
        made.add_column(header, justify="right", no_wrap=True, vertical="bottom")
    return made


def titled(title: str, made: Table) -> Group:
    """A table under its title, which may be wider than the table."""
    text = paragraph(title)
    text.stylize("italic")
    return Group(text, made)


def paragraph(text: str, indent: str = "") -> Text:
    """Text wrapped to the width of the tables."""
    return Text(textwrap.fill(text, WIDTH, initial_indent=indent,
                              subsequent_indent=" " * len(indent)))  # fmt: skip


def waterfall(steps: Sequence[tuple[str, int, int]], title: str, unit: Unit | None = None) -> Group:
    """Signed steps as bars between a running sum and the next.

    Args:
        steps: label, bytes (signed), and the running sum after them: `Ledger.waterfall`.
        title: without the unit, which is added.
        unit: of the figures; None takes one that suits the largest.
    """
    most = max((running for _, _, running in steps), default=0) or 1
    unit = unit or unit_for(most)
    lines = [paragraph(f"{title}, {unit.name}:")]
    lines[0].stylize("italic")
    before = 0
    for label, change, running in steps:
        low, high = sorted((before, running))
        start, end = round(BAR * low / most), round(BAR * high / most)
        mark = "█" if change >= 0 else "░"
        bar = " " * start + mark * max(1, end - start)
        signed = ("+" if change > 0 and before else "") + unit.of(change)
        lines.append(Text(f"{cut(label, LABEL):{LABEL}} {signed:>10}  {bar}".rstrip()))
        before = running
    lines.append(Text(f"{'total':{LABEL}} {unit.of(before):>10}  {unit.name}"))
    return Group(*lines)


def cut(text: str, width: int) -> str:
    """`text`, shortened in the middle where it is longer than `width`."""
    if len(text) <= width:
        return text
    half = (width - 1) // 2
    return f"{text[: width - 1 - half]}…{text[-half:]}"


def arm_table(arm: Arm, title: str) -> Group:
    """One recipe, stage by stage and by category."""
    best = arm.best
    assert best is not None
    most, unit = best.peak, unit_of(arm)
    parts: list[RenderableType] = [_stages(arm, f"{title}, {unit.name}", unit), Text("")]
    name = "Saved between forward and backward"
    parts += [waterfall(best.saved.waterfall(), name, unit), Text("")]
    name = f"At the peak, in the {most.stage}"
    parts.append(waterfall(most.peak.waterfall(), name, unit))
    parts += [paragraph(note, "note: ") for note in notes_of(arm)]
    return Group(*parts)


def unit_of(arm: Arm) -> Unit:
    """The unit of an arm's tables: what suits its highest peak."""
    return unit_for(arm.best.peak.peak.total) if arm.best is not None else IN_MIB


def notes_of(arm: Arm) -> list[str]:
    """What did not happen, and why; where a trace and a meter differ, what the trace lacks."""
    best = arm.best
    notes = [*arm.notes, *(best.notes if best is not None else ())]
    if arm.traced is not None and arm.traced is not best:
        notes += [f"trace: {note}" for note in arm.traced.notes if note not in notes]
    return notes


def _stages(arm: Arm, title: str, unit: Unit) -> Group:
    witnesses = [w for w in ("formula", "trace", "meter") if _has(arm, w)]
    headers = [f"{moment}\n{w}" for moment in ("live", "peak") for w in witnesses]
    made = table("stage", *headers)
    for stage in Stage:
        cells = [
            _cell(arm, witness, stage, moment, unit)
            for moment in ("live", "peak")
            for witness in witnesses
        ]
        made.add_row(str(stage), *cells)
    return titled(title, made)


def _has(arm: Arm, witness: str) -> bool:
    return bool({"formula": arm.formula, "trace": arm.traced, "meter": arm.measured}[witness])


def _cell(arm: Arm, witness: str, stage: Stage, moment: str, unit: Unit) -> str:
    found = figure(arm, witness, stage, moment)
    return "–" if found is None else unit.of(found)


def figure(arm: Arm, witness: str, stage: Stage, moment: str) -> int | None:
    """Bytes that a witness gives for a moment of a stage; None where it gives none."""
    if witness == "formula":
        ledger = arm.formula[stage][0 if moment == "live" else 1]
    else:
        measured = arm.traced if witness == "trace" else arm.measured
        ledger = getattr(measured[stage], moment) if measured is not None else None
    return ledger.total if ledger is not None else None


def differences(arm: Arm) -> list[str]:
    """Where witnesses differ, in words; one line if they do not."""
    present = [w for w in ("formula", "trace", "meter") if _has(arm, w)]
    pairs = list(combinations(present, 2))
    apart = {pair: found for pair in pairs if (found := _apart(arm, *pair))}
    if pairs and not apart:
        names = " and ".join([", ".join(present[:-1]), present[-1]]).capitalize()
        return [f"{names} agree to the byte in every stage."]
    lines = []
    for one, other in pairs:
        if (one, other) not in apart:
            lines.append(f"{one.capitalize()} and {other} agree to the byte in every stage.")
            continue
        found = apart[one, other]
        stage, moment, by = max(found, key=lambda difference: abs(difference[2]))
        base = figure(arm, other, stage, moment) or 1
        lines.append(
            f"{other.capitalize()} minus {one}: {len(found)} of {2 * len(Stage)} figures differ, "
            f"most the {moment} of the {stage}, by {by:+,} bytes ({100 * by / base:+.2f} %)."
        )
        best = arm.measured or arm.traced
        assert best is not None
        copies = best[stage].peak.where(term="fp32 copies of emulation").total
        if one == "formula" and copies:
            lines.append(f"The emulation's own fp32 copies are {copies:,} bytes at that peak.")
    return lines


def _apart(arm: Arm, one: str, other: str) -> list[tuple[Stage, str, int]]:
    """Stage, moment and the other's bytes minus the one's, where both are known and differ."""
    return [
        (stage, moment, b - a)
        for stage in Stage
        for moment in ("live", "peak")
        if (a := figure(arm, one, stage, moment)) is not None
        and (b := figure(arm, other, stage, moment)) is not None
        and a != b
    ]


def terms_table(terms: Ledger, title: str) -> Group:
    """Signed terms as a waterfall, with their reasons."""
    steps = [(row.term, row.bytes, 0) for row in terms]
    running = 0
    for index, (label, change, _) in enumerate(steps):
        running += change
        steps[index] = (label, change, running)
    reasons = [paragraph(f"{row.term}: {row.reason}.", "• ") for row in terms if row.reason]
    return Group(waterfall(steps, title), *([Text(""), *reasons] if reasons else []))


def gigabytes(size: int) -> tuple[str, str]:
    """A size in GB and in GiB, without units: 444.8 and 414.25."""
    return _short(size / GB), _short(size / GIB)


def _short(value: float) -> str:
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def bullets(lines: Iterable[str]) -> Group:
    """A list."""
    return Group(*(paragraph(line, "• ") for line in lines))


def device_table(figures: Sequence[dict[str, Any]]) -> Group:
    """The accelerator's chain of figures, each explained."""
    made = table("stage", "figure", "live", "peak")
    for one in figures:
        peak = "–" if one["peak"] is None else mib(one["peak"])
        made.add_row(str(one["stage"]), one["name"], mib(one["live"]), peak)
    meanings = dict.fromkeys(f"{one['name']}: {one['meaning']}." for one in figures)
    return Group(titled("The allocator's own figures, MiB", made), bullets(meanings))
