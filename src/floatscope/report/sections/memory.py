"""Memory: from the formula to what was measured, as a waterfall with the remainder named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from floatscope.report.evidence import Evidence
from floatscope.report.memory_record import MemoryRecord, live, stage_of
from floatscope.report.memory_words import ATTENTION, TERMS, category, reason_of
from floatscope.report.memory_words import stage as stage_words
from floatscope.report.section import Answer, Section
from floatscope.report.svg import short
from floatscope.report.words import Say, grouped, mebibytes, one_after_another, same, signed


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One signed step of a waterfall."""

    label: Say
    change: str
    svg: Markup
    reason: Say
    is_total: bool = False


def section(evidence: Evidence) -> Section:
    """The section; pending without a memory record."""
    title = Say("Memory: theory against measurement", "显存：理论账与实测截面")
    problem = evidence.damaged.get("memory", "")
    if not evidence.memories:
        command = f"floatscope memory measure {evidence.study.plan.name} --out "
        command += f"{evidence.place}/memory"
        return Section(name="memory", title=title, command=command, problem=problem)
    return Section(
        name="memory",
        title=title,
        problem=problem,
        answers=tuple(_answers(evidence.memories)),
        values={"records": [_shown(record) for record in evidence.memories]},
    )


def _shown(record: MemoryRecord) -> dict[str, Any]:
    return {
        "shape": record.data["shape"],
        "device": record.data["device"],
        "optimizer": record.data["optimizer"],
        "alone": record.data["alone"],
        "arms": [_arm(arm) for arm in record.arms],
    }


def _arm(arm: dict[str, Any]) -> dict[str, Any]:
    return {
        "recipe": arm["recipe"],
        "backend": arm["backend"],
        "bars": [*waterfall(arm)],
        "stages": [*_stages(arm)],
        "rss": mebibytes(arm["peak_rss_bytes"]) if arm["peak_rss_bytes"] else "",
        "notes": arm["notes"],
    }


def waterfall(arm: dict[str, Any]) -> Iterable[Bar]:
    """From the formula's sum by signed terms to what is saved; the remainder is a bar too."""
    terms = arm["terms"]
    if not terms:
        return
    running = [0]
    for term in terms:
        running.append(running[-1] + term["bytes"])
    unexplained = arm["unexplained_bytes"]
    most = max([*running, 1])
    for place, term in enumerate(terms):
        start, end = sorted(running[place : place + 2])
        tone = "total" if not place else "up" if term["bytes"] >= 0 else "down"
        change = signed(term["bytes"] / 2**20, 2) if place else mebibytes(term["bytes"])
        yield Bar(
            label=TERMS.get(term["term"], same(term["term"])),
            change=change,
            svg=_bar(start / most, end / most, tone),
            reason=reason_of(term["term"], term["reason"]),
        )
    yield Bar(
        label=Say("unexplained remainder", "无法解释的余额"),
        change=f"{grouped(unexplained)} B",
        svg=_bar(0, 0, "up"),
        reason=same(""),
    )
    yield Bar(
        label=Say("saved for backward, measured", "为反向存下的，实测"),
        change=mebibytes(arm["saved_bytes"]),
        svg=_bar(0, arm["saved_bytes"] / most, "total"),
        reason=same(""),
        is_total=True,
    )


def _bar(start: float, end: float, tone: str) -> Markup:
    width = max(end - start, 0.003) if end > start else 0
    return Markup(
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" class="fall">'
        f'<rect class="{tone}" x="{short(100 * start)}" width="{short(100 * width)}" height="8"/>'
        "</svg>"
    )


def _stages(arm: dict[str, Any]) -> Iterable[tuple[Say, list[str], Say]]:
    """A row a stage: live by each witness, the measured peak, and what is alive."""
    for stage in arm["stages"]:
        sizes = [stage[f"live_by_{witness}"] for witness in ("formula", "trace", "meter")]
        peak = (
            stage["peak_by_meter"] if stage["peak_by_meter"] is not None else stage["peak_by_trace"]
        )
        held = stage.get("live_by_category", {})
        alive = Say(
            ", ".join(f"{name} {mebibytes(size)}" for name, size in held.items()),
            "，".join(f"{category(name).zh} {mebibytes(size)}" for name, size in held.items()),
        )
        yield stage_words(stage["stage"]), [mebibytes(size) for size in (*sizes, peak)], alive


def activations(arm: dict[str, Any]) -> int | None:
    """What the forward pass adds to what building the model took."""
    before, after = live(arm, "build"), live(arm, "forward")
    return None if before is None or after is None else after - before


def _answers(records: Sequence[MemoryRecord]) -> Iterable[Answer]:
    with_fp32 = [(record, arm) for record in records if (arm := record.fp32) is not None]
    if not with_fp32:
        return
    yield _states(*with_fp32[0])
    yield Answer(
        question=Say(
            "How do the measured activations compare with the formula?",
            "实测激活与公式相比如何？",
        ),
        answer=one_after_another(_activations(record, arm) for record, arm in with_fp32),
    )


def _states(record: MemoryRecord, arm: dict[str, Any]) -> Answer:
    count = record.num_parameters or 0
    states = stage_of(arm, "first optimizer step")
    measured, theory = live(arm, "first optimizer step") or 0, 16 * count
    rest = measured - theory
    named = {k: v for k, v in states.get("live_by_category", {}).items()
             if k not in ("parameters", "gradients", "first moment", "second moment")}  # fmt: skip
    return Answer(
        question=Say(
            "Does the measurement after the first step agree with 16 bytes a parameter?",
            "「第一步后」的实测与每参数 16 字节相符吗？",
        ),
        answer=Say(
            f"16 × {grouped(count)} = {grouped(theory)} B = {mebibytes(theory)} MiB; measured "
            f"{mebibytes(measured)} MiB. The remainder is {grouped(rest)} B: "
            f"{', '.join(f'{k} {grouped(v)}' for k, v in named.items())}. The activations are gone "
            "by then; they show after the forward pass.",
            f"16 × {grouped(count)} = {grouped(theory)} B = {mebibytes(theory)} MiB；实测 "
            f"{mebibytes(measured)} MiB。余额 {grouped(rest)} B："
            f"{'，'.join(f'{category(k).zh} {grouped(v)}' for k, v in named.items())}。"
            "此时激活已经释放；它出现在前向之后。",
        ),
    )


def _activations(record: MemoryRecord, arm: dict[str, Any]) -> Say | None:
    attention = record.data["shape"].get("attention", "")
    found, formula = activations(arm), arm["formula_bytes"]
    if found is None or formula is None:
        return None
    return Say(
        f"{attention.capitalize()} attention, after forward minus after build: "
        f"{mebibytes(found)} MiB; the standard block's formula "
        f"says {mebibytes(formula)} MiB. The waterfall names every term between them; unexplained "
        f"{grouped(arm['unexplained_bytes'])} B.",
        f"{ATTENTION.get(attention, attention)}，前向后减建模型后：{mebibytes(found)} MiB；"
        f"标准块公式给出 {mebibytes(formula)} MiB。"
        f"两者之间的每一项都在瀑布图里有名；无法解释 {grouped(arm['unexplained_bytes'])} B。",
    )
