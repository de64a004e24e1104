"""The course document's five lessons, each held against this study's data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from floatscope.lab.probe.answers import SCALED, SMALLEST
from floatscope.lab.probe.records import BlockTotal
from floatscope.report.evidence import Evidence
from floatscope.report.memory_record import MemoryRecord, live
from floatscope.report.memory_words import ATTENTION
from floatscope.report.probes import ProbedState
from floatscope.report.section import Section
from floatscope.report.sections.loss import BF16, FP16, UNSCALED
from floatscope.report.sections.memory import activations
from floatscope.report.words import Say, mebibytes, number, one_after_another, percent


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A conclusion, what follows from definitions, and what this data says."""

    claim: Say
    arithmetic: Say | None
    measured: Say | None
    """None: not measured."""
    command: str


def section(evidence: Evidence) -> Section:
    """The section."""
    return Section(
        name="conclusions",
        title=Say("The five lessons against this data", "把结论对回前五课"),
        values={"lessons": [*_lessons(evidence)]},
    )


def _lessons(evidence: Evidence) -> Iterable[Lesson]:
    memory = next(iter(evidence.memories), None)
    measure = f"floatscope memory measure {evidence.study.plan.name} --out "
    measure += f"{evidence.place}/memory"
    yield Lesson(
        claim=Say(
            "The model's states take 16 bytes a parameter, three quarters of them the optimizer's.",
            "模型状态 16 字节/参数，优化器状态占四分之三。",
        ),
        arithmetic=Say(
            "Two bookkeepings of 16. With a 16-bit copy: weight 2, gradient 2, fp32 master 4, "
            "moments 8; the optimizer's are 12 of 16, three quarters. Under autocast, as here: "
            "weight 4, gradient 4, moments 8; 8 of 16, half.",
            "16 有两种记法。16 位副本：权重 2、梯度 2、fp32 主参数 4、两个矩 8，优化器占 12/16，"
            "即四分之三。"
            "autocast（本实验）：权重 4、梯度 4、两个矩 8，优化器占 8/16，即一半。",
        ),
        measured=_moments(memory),
        command=measure,
    )
    yield from _formats(evidence)
    yield Lesson(
        claim=Say(
            "Activations follow from s, b, h and L and can far exceed the states.",
            "激活由 s、b、h、L 决定，可以远大于模型状态。",
        ),
        arithmetic=None,
        measured=one_after_another(map(_activations, evidence.memories)),
        command=measure,
    )


def _formats(evidence: Evidence) -> Iterable[Lesson]:
    """What the probe says of fp16, of bf16, and of fewer bits."""
    probe = evidence.main_probe
    state = probe.states[-1] if probe is not None else None
    run_probe = f"floatscope probe {evidence.place}"
    yield Lesson(
        claim=Say(
            "fp16 underflows; loss scaling moves the gradient back into range.",
            "fp16 会下溢；损失缩放把梯度推回可表示的范围。",
        ),
        arithmetic=None,
        measured=_underflow(evidence, state),
        command=run_probe,
    )
    yield Lesson(
        claim=Say(
            "bf16 has fp32's range and needs no scaling.", "bf16 的范围与 fp32 相同，不用缩放。"
        ),
        arithmetic=Say(
            "bf16 becomes zero at or below 2⁻¹³⁴, fp16 at or below 2⁻²⁵.",
            "bf16 在不超过 2⁻¹³⁴ 时才变 0，fp16 在不超过 2⁻²⁵ 时就变 0。",
        ),
        measured=_bf16(evidence, state),
        command=run_probe,
    )
    yield Lesson(
        claim=Say("8 and 4 bits need block scales.", "8 位、4 位要靠块缩放。"),
        arithmetic=None,
        measured=_blocks(state),
        command=run_probe,
    )


def _moments(memory: MemoryRecord | None) -> Say | None:
    arm = memory.fp32 if memory is not None else None
    if memory is None or arm is None or memory.num_parameters is None:
        return None
    after, before = live(arm, "first optimizer step"), live(arm, "backward")
    if after is None or before is None:
        return None
    each = (after - before) / memory.num_parameters
    return Say(
        f"From after backward to after the first step: + {mebibytes(after - before)} MiB, "
        f"{each:.4f} bytes a parameter, against 8 for the two moments.",
        f"从「反向后」到「第一步后」：+ {mebibytes(after - before)} MiB，"
        f"每参数 {each:.4f} 字节；两个矩应为 8。",
    )


def _underflow(evidence: Evidence, state: ProbedState | None) -> Say | None:
    if state is None:
        return None
    before, after = (state.total.below(SMALLEST - k).fraction for k in (0, SCALED))
    arms = {arm.recipe: arm for arm in evidence.summary.arms}
    said = Say(
        f"Below 2⁻²⁴ lie {percent(before)} unscaled and {percent(after)} at 65 536.",
        f"落在 2⁻²⁴ 以下：不缩放 {percent(before)}，乘 65 536 之后 {percent(after)}。",
    )
    if UNSCALED in arms and FP16 in arms:
        pair = percent(arms[UNSCALED].zero_fraction), percent(arms[FP16].zero_fraction)
        said += Say(
            f"Exactly zero over the training: {pair[0]} unscaled, {pair[1]} scaled.",
            f"整个训练中恰为 0：不缩放 {pair[0]}，缩放 {pair[1]}。",
        )
    return said


def _bf16(evidence: Evidence, state: ProbedState | None) -> Say | None:
    arms = {arm.recipe: arm for arm in evidence.summary.arms}
    if state is None or BF16 not in arms:
        return None
    rows = {(t.format, t.exponent): t for t in state.summary.totals}
    zero = state.total.underflow("bf16").fraction
    said = Say(
        f"No scaling: {number(arms[BF16].skipped_steps, 0)} skipped steps; {percent(zero)} of the "
        "gradient becomes zero in bf16.",
        f"不缩放：跳步 {number(arms[BF16].skipped_steps, 0)}；"
        f"存成 bf16 变为 0 的梯度 {percent(zero)}。",
    )
    bf16, fp16 = rows.get(("bf16", 0)), rows.get(("fp16", SCALED))
    if bf16 is None or fp16 is None:
        return said
    return said + Say(
        f"Its price is precision: the median element is off by {percent(bf16.median_error)}, in "
        f"scaled fp16 by {percent(fp16.median_error)}.",
        f"代价是精度：单个元素误差的中位数 {percent(bf16.median_error)}，缩放的 fp16 为 "
        f"{percent(fp16.median_error)}。",
    )


def _blocks(state: ProbedState | None) -> Say | None:
    if state is None:
        return None
    blocks = {b.format: b for b in state.summary.block_formats}
    plain = {f: percent(state.total.underflow(f).fraction) for f in ("e4m3fn", "e2m1fn")}

    def lost(name: str) -> str:
        found: BlockTotal | None = blocks.get(name)
        return percent(found.underflow / found.of) if found is not None and found.of else "–"

    return Say(
        f"Zeros in a plain cast: e4m3fn {plain['e4m3fn']}, e2m1fn {plain['e2m1fn']}; with block "
        f"scales: mxfp8-e4m3 {lost('mxfp8-e4m3')}, mxfp4 {lost('mxfp4')}, nvfp4 {lost('nvfp4')}. "
        "Gradients alone, no training in 8 bits.",
        f"直接转换变为 0：e4m3fn {plain['e4m3fn']}，e2m1fn {plain['e2m1fn']}；带块缩放：mxfp8-e4m3 "
        f"{lost('mxfp8-e4m3')}，mxfp4 {lost('mxfp4')}，nvfp4 {lost('nvfp4')}。"
        "只看梯度，没有做 8 位训练。",
    )


def _activations(memory: MemoryRecord) -> Say | None:
    arm = memory.fp32
    if arm is None or memory.num_parameters is None:
        return None
    found, states, formula = activations(arm), 16 * memory.num_parameters, arm["formula_bytes"]
    if found is None or formula is None:
        return None
    attention = memory.data["shape"].get("attention", "")
    return Say(
        f"With {attention} attention {mebibytes(found)} MiB measured in fp32, {found / states:.1f} "
        f"times the states; the formula says {mebibytes(formula)}.",
        f"{ATTENTION.get(attention, attention)}：fp32 实测 {mebibytes(found)} MiB，是模型状态的 "
        f"{found / states:.1f} 倍；公式给出 {mebibytes(formula)}。",
    )
