"""Memory: from the formula to what was measured, as a waterfall with the remainder named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from floatscope.report.evidence import Evidence
from floatscope.report.memory_record import MemoryRecord, live, stage_of
from floatscope.report.section import Answer, Section
from floatscope.report.svg import short
from floatscope.report.words import Say, grouped, mebibytes, same, signed

TERMS = {
    "formula": Say("formula of the standard block", "标准块的公式"),
    "formula without scores": Say("formula, without scores", "公式，不含分数矩阵"),
    "no dropout": Say("no dropout", "没有 dropout"),
    "SwiGLU": Say("SwiGLU", "SwiGLU"),
    "norms keep more": Say("norms keep more", "归一化多存一些"),
    "residual stream in fp32": Say("residual stream in fp32", "残差流留在 fp32"),
    "one cast a consumer": Say("one cast a consumer", "每个使用者一份转换"),
    "attention": Say("attention", "注意力"),
    "log-sum-exp": Say("log-sum-exp", "log-sum-exp"),
    "last norm and head": Say("last norm and head", "最后的归一化与输出头"),
    "log-softmax": Say("log-softmax", "log-softmax"),
    "casts of weights and tables": Say("casts of weights and tables", "权重与表的转换"),
    "ids and targets": Say("ids and targets", "输入与目标编号"),
}
CATEGORIES = {
    "parameters": "参数", "gradients": "梯度", "first moment": "一阶矩", "second moment": "二阶矩",
    "other optimizer state": "其他优化器状态", "saved activations": "存下的激活",
    "buffers": "缓冲区",
    "logits and loss temporaries": "logits 与损失的临时量", "input": "输入", "casts": "转换",
    "other temporaries": "其他临时量", "optimizer temporaries": "优化器临时量",
    "unexplained": "无法解释", "master copy": "主参数",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One signed step of a waterfall."""

    label: Say
    change: str
    svg: Markup
    reason: str
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
        answers=tuple(a for record in evidence.memories[:1] for a in _answers(record)),
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
            reason=term["reason"],
        )
    yield Bar(
        label=Say("unexplained remainder", "无法解释的余额"),
        change=f"{grouped(unexplained)} B",
        svg=_bar(0, 0, "up"),
        reason="",
    )
    yield Bar(
        label=Say("saved for backward, measured", "为反向存下的，实测"),
        change=mebibytes(arm["saved_bytes"]),
        svg=_bar(0, arm["saved_bytes"] / most, "total"),
        reason="",
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
    called = {
        "build": "建模型", "forward": "前向", "backward": "反向",
        "first optimizer step": "第一步", "zero_grad": "清零梯度", "second forward": "第二次前向",
        "second backward": "第二次反向",
    }  # fmt: skip
    for stage in arm["stages"]:
        sizes = [stage[f"live_by_{witness}"] for witness in ("formula", "trace", "meter")]
        peak = (
            stage["peak_by_meter"] if stage["peak_by_meter"] is not None else stage["peak_by_trace"]
        )
        held = stage.get("live_by_category", {})
        alive = Say(
            ", ".join(f"{name} {mebibytes(size)}" for name, size in held.items()),
            "，".join(
                f"{CATEGORIES.get(name, name)} {mebibytes(size)}" for name, size in held.items()
            ),
        )
        name = Say(f"after {stage['stage']}", f"{called.get(stage['stage'], stage['stage'])}后")
        yield name, [mebibytes(size) for size in (*sizes, peak)], alive


def activations(arm: dict[str, Any]) -> int | None:
    """What the forward pass adds to what building the model took."""
    before, after = live(arm, "build"), live(arm, "forward")
    return None if before is None or after is None else after - before


def _answers(record: MemoryRecord) -> Iterable[Answer]:
    arm = next((a for a in record.arms if a["recipe"] == "fp32"), None)
    count = record.num_parameters
    if arm is None or count is None:
        return
    states = stage_of(arm, "first optimizer step")
    measured, theory = live(arm, "first optimizer step") or 0, 16 * count
    rest = measured - theory
    named = {k: v for k, v in states.get("live_by_category", {}).items()
             if k not in ("parameters", "gradients", "first moment", "second moment")}  # fmt: skip
    yield Answer(
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
            f"{'，'.join(f'{CATEGORIES.get(k, k)} {grouped(v)}' for k, v in named.items())}。"
            "此时激活已经释放；它出现在前向之后。",
        ),
    )
    yield Answer(
        question=Say(
            "How do the measured activations compare with the formula?",
            "实测激活与公式相比如何？",
        ),
        answer=_activations(arm),
    )


def _activations(arm: dict[str, Any]) -> Say | None:
    found, formula = activations(arm), arm["formula_bytes"]
    if found is None or formula is None:
        return None
    return Say(
        f"After forward minus after build: {mebibytes(found)} MiB; the standard block's formula "
        f"says {mebibytes(formula)} MiB. The waterfall names every term between them; unexplained "
        f"{grouped(arm['unexplained_bytes'])} B.",
        f"前向后减建模型后：{mebibytes(found)} MiB；标准块公式给出 {mebibytes(formula)} MiB。"
        f"两者之间的每一项都在瀑布图里有名；无法解释 {grouped(arm['unexplained_bytes'])} B。",
    )
