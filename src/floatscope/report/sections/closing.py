"""The last sentence: what was compared and found, under which conditions, and what is not said."""

from __future__ import annotations

import math

from floatscope.lab.study.summary import Arm
from floatscope.report.evidence import Evidence
from floatscope.report.section import Section
from floatscope.report.sections.loss import floor_words, seeds_named
from floatscope.report.words import Say, grouped, name, names, percent, signed


def section(evidence: Evidence) -> Section:
    """The section."""
    return Section(
        name="closing",
        title=Say("In one sentence", "一句话"),
        spoils=True,
        values={"sentence": sentence(evidence), "limits": _limits(evidence)},
    )


def sentence(evidence: Evidence) -> Say:
    """What was compared, what was found and under which conditions."""
    summary, plan = evidence.summary, evidence.study.plan
    arms = [arm for arm in summary.arms if arm.recipe != summary.baseline and arm.num_runs]
    if not evidence.runs:
        return Say("No run has finished, so nothing was found.", "没有完成的运行，所以没有发现。")
    size, text = grouped(evidence.runs[0].manifest.num_parameters), name(plan.text)
    compared, seeds = names([a.recipe for a in arms]), seeds_named(evidence.runs)
    found = _found(arms)
    if not arms:
        return Say(
            f"One model of {size} parameters was trained in {summary.baseline} alone on {text}: "
            "there is nothing to compare yet.",
            f"只用 {summary.baseline} 在 {text} 上训练了一个 {size} 参数的模型：还没有可比较的。",
        )
    floors = floor_words(summary)
    return Say(
        f"Of one model of {size} parameters, trained for {plan.train.steps} steps on {text} with "
        f"seeds {seeds.en}, {compared.en} were compared with {summary.baseline}, only the "
        f"precision changed: {found.en} ({floors.en}).",
        f"同一个 {size} 参数的模型，在 {text} 上训练 {plan.train.steps} 步，种子 {seeds.zh}，"
        f"只改精度，把 {compared.zh} 与 {summary.baseline} 相比：{found.zh}（{floors.zh}）。",
    )


def _found(arms: list[Arm]) -> Say:
    parts = [_of(arm) for arm in arms]
    return Say("; ".join(p.en for p in parts), "；".join(p.zh for p in parts))


def _of(arm: Arm) -> Say:
    zeros = percent(arm.zero_fraction)
    if arm.num_diverged:
        return Say(
            f"{arm.recipe} diverged in {arm.num_diverged} of {arm.num_runs} runs",
            f"{arm.recipe} 的 {arm.num_runs} 次运行中有 {arm.num_diverged} 次发散",
        )
    if math.isnan(arm.difference):
        return Say(
            f"{arm.recipe} has no baseline of its seeds yet", f"{arm.recipe} 还没有同种子的基线"
        )
    hidden = {arm.hidden_by_seed_spread, arm.hidden_by_rerun_floor}
    if hidden == {None}:
        word = Say("with no measured floor to hold it to", "没有测得底线可比")
    elif False in hidden:
        both = hidden == {False}
        word = Say(f"beyond {'both floors' if both else 'one floor'}",
                   f"超过{'两条' if both else '一条'}底线")  # fmt: skip
    else:
        word = Say("within the floor", "在底线之内")
    return Say(
        f"{arm.recipe} ended {signed(arm.difference)} from it, {word.en}, with {zeros} of its "
        "gradients exactly zero",
        f"{arm.recipe} 相差 {signed(arm.difference)}，{word.zh}，恰为 0 的梯度 {zeros}",
    )


def _limits(evidence: Evidence) -> Say:
    count = evidence.runs[0].manifest.num_parameters if evidence.runs else 0
    size = f"{count / 1e6:.1f} M" if count >= 1e5 else grouped(count)
    steps = evidence.study.plan.train.steps
    return Say(
        f"It cannot say what happens at 10⁹ parameters, after more than {steps} steps, on another "
        f"text, or on devices with other kernels; {size} parameters and "
        f"{len(evidence.study.plan.seeds)} seeds are few.",
        f"它不能说明：10⁹ 参数、超过 {steps} 步、换一份文本、换一种设备内核时会怎样；{size} 参数和 "
        f"{len(evidence.study.plan.seeds)} 个种子都很少。",
    )
