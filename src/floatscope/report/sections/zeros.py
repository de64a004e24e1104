"""Gradients that are exactly zero, step by step, and the loss scale with every skipped step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from floatscope.report.charts import Chart, Curve, drawn, keys
from floatscope.report.evidence import Evidence, Run
from floatscope.report.figure import Figure
from floatscope.report.section import Answer, Section
from floatscope.report.sections.loss import STEP, UNSCALED
from floatscope.report.words import Say, grouped, percent, power, same

SHARE = Say("exactly zero, % of gradient elements", "恰为 0 的梯度元素，%")
CROSS = "M-0.7,-0.7L0.7,0.7M0.7,-0.7L-0.7,0.7"
SCALE = Say("log₂ of the loss scale", "损失缩放的 log₂")


def section(evidence: Evidence) -> Section:
    """The section."""
    figures = [_zeros(evidence)] if evidence.runs else []
    if any(_is_scaled(run) for run in evidence.runs):
        figures.append(_scales(evidence))
    return Section(
        name="zeros",
        title=Say("Zero gradients and the loss scale", "恰为零的梯度与损失缩放"),
        figures=tuple(figures),
        answers=tuple(_answers(evidence)),
        spoils=True,
        values={"arms": evidence.summary.arms, "percent": percent},
    )


def _is_scaled(run: Run) -> bool:
    return run.plan.recipe.loss_scaling is not None


def _zeros(evidence: Evidence) -> Figure:
    curves = [
        Curve(label=run.label, arm=run.recipe, x=_steps(run),
              y=[100 * share for share in run.metrics["zero_fraction"]])
        for run in evidence.runs
    ]  # fmt: skip
    chart = Chart(arms=evidence.recipes, curves=curves, dashed=False, y_scale={"zero": True},
                  marks=_skips(evidence.runs, "zero_fraction"))  # fmt: skip
    svg, live = drawn(chart)
    note = Say("× marks a skipped step.", "× 标出被跳过的步。") + _thinned(chart)
    return Figure(name="zero-gradients", title=Say("Exactly zero gradients", "恰为 0 的梯度"),
                  svg=svg, live=live, x=STEP, y=SHARE, note=note,
                  keys=keys(chart.arms, chart.arms, dashed=False))  # fmt: skip


def _scales(evidence: Evidence) -> Figure:
    curves = [
        Curve(label=run.label, arm=run.recipe, x=_steps(run),
              y=[math.log2(scale) if scale > 0 else math.nan
                 for scale in run.metrics["loss_scale"]])
        for run in evidence.runs
        if _is_scaled(run)
    ]  # fmt: skip
    chart = Chart(arms=evidence.recipes, curves=curves, dashed=False, interpolate="step-before",
                  marks=_skips([r for r in evidence.runs if _is_scaled(r)], "loss_scale"),
                  y_axis={"tickMinStep": 1, "format": "d"})  # fmt: skip
    svg, live = drawn(chart)
    note = Say(
        "Each × is a skipped step, at which the scale was halved; runs may lie on one another.",
        "每个 × 是一次跳步，缩放随之减半；各次运行可能重叠。",
    )
    return Figure(name="loss-scale", title=Say("Dynamic loss scale", "动态损失缩放"),
                  svg=svg, live=live, x=STEP, y=SCALE, note=note + _thinned(chart),
                  keys=keys(chart.arms, [c.arm for c in curves], dashed=False))  # fmt: skip


def _thinned(chart: Chart) -> Say:
    shown, there = chart.num_points
    if shown == there:
        return same("")
    return Say(f"Showing {grouped(shown)} of {grouped(there)} points.",
               f"显示 {grouped(there)} 个点中的 {grouped(shown)} 个。")  # fmt: skip


def _steps(run: Run) -> list[int]:
    return [step + 1 for step in run.metrics["step"]]


def _skips(runs: Iterable[Run], column: str) -> list[tuple[float, float, str, str]]:
    marks = []
    for run in runs:
        for step, skipped, value in zip(
            run.metrics["step"], run.metrics["skipped"], run.metrics[column], strict=True
        ):
            if skipped:
                y = math.log2(value) if column == "loss_scale" and value > 0 else 100 * value
                marks.append((step + 1, y if math.isfinite(y) else 0.0, CROSS, run.recipe))
    return marks


def _answers(evidence: Evidence) -> Iterable[Answer]:
    yield Answer(
        question=Say(
            "At which share of steps has unscaled fp16 more zeros than every other arm?",
            "有多大比例的步，不缩放的 fp16 恰为 0 的梯度多于其他各组？",
        ),
        answer=_exceeds(evidence),
    )
    yield Answer(
        question=Say("Which steps halved the scale?", "缩放在哪些步减半？"),
        answer=_halvings(evidence),
    )


def _exceeds(evidence: Evidence) -> Say | None:
    """Seed by seed and step by step, against the largest of the other arms."""
    by_seed: dict[int, dict[str, Sequence[float]]] = {}
    for run in evidence.runs:
        if not run.plan.ulp_rerun:
            by_seed.setdefault(run.plan.seed, {})[run.recipe] = run.metrics["zero_fraction"]
    more = steps = 0
    for arms in by_seed.values():
        if UNSCALED in arms and len(arms) > 1:
            others = [shares for recipe, shares in arms.items() if recipe != UNSCALED]
            for mine, *rest in zip(arms[UNSCALED], *others, strict=False):
                more, steps = more + (mine > max(rest)), steps + 1
    if not steps:
        return None
    shares = {arm.recipe: percent(arm.zero_fraction) for arm in evidence.summary.arms}
    means = ", ".join(f"{recipe} {share}" for recipe, share in shares.items())
    return Say(
        f"At {percent(more / steps)} of the steps ({grouped(more)} of {grouped(steps)}, seed by "
        f"seed). Means over steps: {means}.",
        f"{percent(more / steps)} 的步（{grouped(steps)} 步中的 {grouped(more)} 步，逐种子比较）。"
        f"各组对步的均值：{means}。",
    )


def _halvings(evidence: Evidence) -> Say | None:
    scaled = [run for run in evidence.runs if _is_scaled(run)]
    if not scaled:
        return None
    said = same("")
    for run in scaled:
        skipped = [s + 1 for s, out in zip(run.metrics["step"], run.metrics["skipped"], strict=True)
                   if out]  # fmt: skip
        grown = [s + 1 for s, e in zip(run.events["step"], run.events["event"], strict=True)
                 if e == "scale_grew"]  # fmt: skip
        said += Say(
            f"{run.label}: {_listed(skipped) or 'none'}"
            f"{f'; doubled after {_listed(grown)}' if grown else ''}.",
            f"{run.label}：{_listed(skipped) or '没有'}"
            f"{f'；在第 {_listed(grown)} 步之后加倍' if grown else ''}。",
        )
    first = scaled[0].metrics["loss_scale"][0]
    return said + Say(
        f"All began at {_scale(first)}. No halving means that no gradient overflowed.",
        f"都从 {_scale(first)} 开始。没有减半，即没有梯度溢出。",
    )


def _listed(steps: Sequence[int]) -> str:
    text = ", ".join(map(str, steps[:8]))
    return text + (f", … ({len(steps)})" if len(steps) > 8 else "")


def _scale(value: float) -> str:
    exponent = math.log2(value) if value > 0 else math.nan
    return power(int(exponent)) if exponent == int(exponent) else f"{value:g}"
