"""Predict first: what the reader expects, written down before he sees the curves."""

from __future__ import annotations

from dataclasses import dataclass

from floatscope.report.evidence import Evidence
from floatscope.report.section import Section
from floatscope.report.sections.loss import UNSCALED
from floatscope.report.words import Say, same


@dataclass(frozen=True)
class Choice:
    """A question with answers to pick from."""

    name: str
    question: Say
    options: tuple[Say, ...]


def section(evidence: Evidence) -> Section:
    """The section."""
    return Section(
        name="predict",
        title=Say("Predict first", "先猜，再看曲线"),
        values={"choices": [*_choices(evidence.recipes)]},
    )


def _choices(recipes: list[str]) -> list[Choice]:
    arms = tuple(same(recipe) for recipe in recipes)
    none = Say("none can be told apart", "分不出高下")
    choices = [
        Choice("worst", Say("Which recipe ends with the highest loss?", "哪一组最终损失最高？"),
               (*arms, none)),
        Choice("gap", Say("How large is the largest gap, in nats per token?",
                          "最大差距有多大（nat/token）？"),
               (same("< 0.01"), same("0.01 … 0.1"), same("> 0.1"))),
    ]  # fmt: skip
    if UNSCALED in recipes:
        question = Say(
            "Which share of the gradient is exactly zero without loss scaling?",
            "不做损失缩放时，恰为 0 的梯度占多大比例？",
        )
        shares = tuple(map(same, ("< 0.1 %", "0.1 … 5 %", "5 … 50 %", "> 50 %")))
        choices.append(Choice("zeros", question, shares))
    return choices
