"""The verdict: one card a recipe, in words, with what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from floatscope.lab.statistics import Interval
from floatscope.lab.statistics.verdict import SCREENING_UP_TO
from floatscope.lab.study.judgement import ArmJudgement, Judgement
from floatscope.lab.study.summary import SIGMAS, Arm, Summary
from floatscope.report.charts import color_of
from floatscope.report.evidence import Evidence
from floatscope.report.section import Section
from floatscope.report.sections.loss import floor_words
from floatscope.report.svg import short
from floatscope.report.words import Say, number, percent, same, signed

FOREST_WIDTH = 300
WORDS = {
    "not worse": (Say("not worse", "不更差"), "good"),
    "equivalent": (Say("equivalent", "等价"), "good"),
    "worse": (Say("worse", "更差"), "bad"),
    "different but within the margin": (
        Say("different, but within the margin", "有差别，但在界限之内"), "good"),
    "inconclusive": (Say("inconclusive", "无法定论"), "open"),
}  # fmt: skip
STATED = {
    "never": Say("No margin was stated, so there is no verdict against one.",
                 "没有事先声明界限，所以没有针对界限的结论。"),
    "before the runs": Say("The question was stated before the runs.", "问题在运行之前就已声明。"),
    "after some of the runs": Say(
        "The question was stated after some of the runs: error rates do not hold.",
        "问题是在部分运行之后才声明的：错误率不成立。"),
    "after the runs": Say("The question was stated after the runs: error rates do not hold.",
                          "问题是在运行之后才声明的：错误率不成立。"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Card:
    """One recipe's verdict."""

    recipe: str
    color: str
    word: Say
    tone: str
    """"good", "bad" or "open"."""
    sentence: Say | None
    """What the verdict rests on; None where there is none."""
    difference: str
    facts: tuple[tuple[Say, Say], ...]
    forest: Markup


def section(evidence: Evidence) -> Section:
    """The section; without a finished run of the baseline and another arm it has no cards."""
    summary = evidence.summary
    arms = [arm for arm in summary.arms if arm.recipe != summary.baseline]
    return Section(
        name="verdict",
        title=Say("Verdict", "结论"),
        command="" if any(a.differences for a in arms) else f"floatscope study run {summary.name}",
        spoils=True,
        values={
            "cards": [_card(arm, evidence) for arm in arms if arm.num_runs],
            "baseline": next((a for a in summary.arms if a.recipe == summary.baseline), None),
            "floors": floor_words(summary),
            "judgement": summary.judgement,
            "stated": STATED[summary.judgement.stated],
            "margin": _margin(summary.judgement),
            "emulated": any("emulated" in arm.backend for arm in summary.arms),
            "number": number,
        },
    )


def _card(arm: Arm, evidence: Evidence) -> Card:
    judged = next((j for j in evidence.summary.judgement.arms if j.recipe == arm.recipe), None)
    judged = judged if judged is not None and judged.word is not None else None
    by_floors, tone = _word(arm)
    word = by_floors
    if judged is not None:
        word, tone = _verdict(judged)
    facts = (
        (Say("pairs", "配对数"), same(f"n = {len(arm.differences)}")),
        *(() if judged is None else _intervals(judged)),
        (Say("by three standard deviations", "按三个标准差"), by_floors),
        (Say("validation loss", "验证损失"), same(number(arm.validation_loss))),
        (Say("skipped steps", "跳过的步"), same(_count(arm.skipped_steps))),
        (Say("exactly zero gradients", "恰为 0 的梯度"), same(percent(arm.zero_fraction))),
        (Say("diverged", "发散"), same(f"{arm.num_diverged} / {arm.num_runs}")),
    )
    return Card(
        recipe=arm.recipe,
        color=color_of(arm.recipe, evidence.recipes),
        word=word,
        tone=tone,
        sentence=_sentence(judged, arm) if judged is not None else None,
        difference=signed(arm.difference),
        facts=facts,
        forest=_forest(arm, evidence.summary, judged),
    )


def _word(arm: Arm) -> tuple[Say, str]:
    """The course document's rule on the two measured floors."""
    if arm.num_diverged:
        return Say("diverged", "发散"), "bad"
    hidden = {arm.hidden_by_seed_spread, arm.hidden_by_rerun_floor}
    if math.isnan(arm.difference) or hidden == {None}:
        return Say("nobody can say yet", "尚无从判断"), "open"
    if False not in hidden:
        return Say("cannot be told from the baseline", "与基线分不出高下"), "good"
    both = Say("beyond both floors", "超过两条底线") if hidden == {False} else Say(
        "beyond one floor", "超过其中一条底线")  # fmt: skip
    worse = arm.difference > 0
    return Say(
        f"{'worse' if worse else 'better'}: {both.en}", f"{'更差' if worse else '更好'}：{both.zh}"
    ), "bad" if worse else "good"


def _verdict(judged: ArmJudgement) -> tuple[Say, str]:
    """The word of the verdict; one that fails the correction for several arms is not shown."""
    word, tone = WORDS[str(judged.word)]
    if tone == "good" and judged.holds is not True:
        return Say(f"{word.en} by itself; not shown after the correction for several arms",
                   f"单独看{word.zh}；经多组校正后未得到证明"), "open"  # fmt: skip
    return word, tone


def _sentence(judged: ArmJudgement, arm: Arm) -> Say:
    """The laboratory's sentence, and in Chinese what it rests on."""
    few = "样本太少，只算筛查；" if len(arm.differences) <= SCREENING_UP_TO else ""
    return Say(judged.sentence, f"{few}比较方法：{judged.method}，{len(arm.differences)} 对。")


def _intervals(judged: ArmJudgement) -> tuple[tuple[Say, Say], ...]:
    shown = []
    for interval in (judged.interval, judged.margin_interval):
        if interval is not None:
            words = Say(f"{interval.confidence:.0%} interval", f"{interval.confidence:.0%} 区间")
            shown.append((words, same(f"{signed(interval.low)} … {signed(interval.high)}")))
    if judged.needed is not None:
        needed = judged.needed.not_worse
        shown.append((Say("would settle it", "要定论需要"), same(f"n = {needed or '> 1000'}")))
    return tuple(shown)


def _margin(judgement: Judgement) -> str:
    return "" if judgement.margin is None else number(judgement.margin)


def _forest(arm: Arm, summary: Summary, judged: ArmJudgement | None) -> Markup:
    """Each seed's difference as a dot, their mean as a bar, the 95 % interval as a line.

    Behind them the margin, or the seed spread where none was stated.
    """
    limit = SIGMAS * summary.seed_spread.standard_deviation
    limit = 0.0 if math.isnan(limit) else limit
    if judged is not None and summary.judgement.margin is not None:
        limit = summary.judgement.margin
    intervals = [j.interval for j in summary.judgement.arms if j.interval is not None]
    every = [d for a in summary.arms for d in a.differences.values()]
    every += [end for interval in intervals for end in (interval.low, interval.high)]
    reach = max([abs(d) for d in every] + [limit * 1.2, 1e-9]) * 1.08

    def at(value: float) -> str:
        return short(FOREST_WIDTH / 2 * (1 + value / reach))

    width = short(FOREST_WIDTH * limit / reach)
    parts = [
        f'<rect x="{at(-limit)}" width="{width}" height="28" fill="var(--band)"/>',
        f'<path d="M{at(0)} 0v28" stroke="var(--axis)"/>',
        _line(judged.interval if judged is not None else None, at),
        *(
            f'<circle cx="{at(d)}" cy="14" r="4.5" fill="none" stroke="currentColor" '
            'stroke-width="1.6"/>'
            for d in arm.differences.values()
        ),
    ]
    if not math.isnan(arm.difference):
        mark = f'<path d="M{at(arm.difference)} 3v22" stroke="currentColor" stroke-width="3"/>'
        parts.append(mark)
    opening = f'<svg viewBox="0 0 {FOREST_WIDTH} 28" class="forest" aria-hidden="true">'
    return Markup(f"{opening}{''.join(parts)}</svg>")


def _line(interval: Interval | None, at: Callable[[float], str]) -> str:
    if interval is None:
        return ""
    return f'<path d="M{at(interval.low)} 14H{at(interval.high)}" stroke="currentColor"/>'


def _count(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0f}" if value % 1 == 0 else f"{value:.1f}"
