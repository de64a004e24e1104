"""Paper against autocast: what the spectrum predicts, beside what a pass in 16 bits really gave."""

from __future__ import annotations

from collections.abc import Iterable

from floatscope.lab.probe.answers import SCALED, largest_differences, totals
from floatscope.lab.probe.records import Backward, Total
from floatscope.report.evidence import Evidence
from floatscope.report.probes import ProbedState, ProbeRecord
from floatscope.report.section import Answer, Section
from floatscope.report.sections.number_line import state_words
from floatscope.report.words import Say, percent, power, same

FEW = 5
"""Layers that are named."""


def section(evidence: Evidence) -> Section:
    """The section; pending without a probe."""
    title = Say("Paper against autocast", "纸面统计对照真实 autocast")
    probe = evidence.main_probe
    if probe is None:
        command = f"floatscope probe {evidence.place}"
        return Section(name="autocast", title=title, command=command)
    return Section(
        name="autocast",
        title=title,
        answers=(_answer(probe),),
        values={
            "states": [
                {"words": state_words(state), "rows": [*_rows(state)], "worst": [*_worst(state)]}
                for state in probe.states
            ],
            "label": probe.label,
            "backends": sorted({p.backend for s in probe.states for p in s.summary.passes}),
        },
    )


def _rows(state: ProbedState) -> Iterable[list[str]]:
    """A row a pass: format, scale, zeros on paper and really, subnormal, not finite, error."""
    for total in totals(state.backward):
        counts = (total.predicted, total.zeros, total.subnormals, total.infinities + total.nans)
        shares = [percent(count / total.of) if total.of else "–" for count in counts]
        yield [total.format, power(total.exponent), *shares, percent(total.median_error)]


def _worst(state: ProbedState) -> Iterable[tuple[str, str, str, str]]:
    """Where fp16 at scale 1 differs most: what, its name, and the share of zeros on both sides."""
    for rows, kind in ((state.backward, "weight"), (state.on_the_way, "output")):
        for row in largest_differences(rows, "fp16", 0, FEW):
            yield kind, row.name, _share(row, row.predicted), _share(row, row.zeros)


def _share(row: Backward, count: int) -> str:
    return percent(count / row.of) if row.of else "–"


def _answer(probe: ProbeRecord) -> Answer:
    said = same("")
    for state in probe.states:
        for total in totals(state.backward):
            if total.format == "fp16" and total.exponent in (0, SCALED):
                said += _compared(state, total)
    return Answer(
        question=Say(
            "③ How far is a real pass from paper, and in which layers do they part?",
            "③ 真在 autocast 下反向，与纸面统计差多少，差在哪些层？",
        ),
        answer=said if said.en.strip() else None,
        command="floatscope probe DIR --recipe fp16-mixed",
    )


def _compared(state: ProbedState, total: Total) -> Say:
    paper, real = (percent(n / total.of) if total.of else "–"
                   for n in (total.predicted, total.zeros))  # fmt: skip
    words = state_words(state)
    said = Say(
        f"{words.en.capitalize()}, scale {power(total.exponent)}: {real} are zero where paper says "
        f"{paper}",
        f"{words.zh}，缩放 {power(total.exponent)}：真实 {real} 为 0，纸面 {paper}",
    )
    worst = largest_differences(state.backward, "fp16", total.exponent, 1)
    if worst:
        row = worst[0]
        shares = _share(row, row.zeros), _share(row, row.predicted)
        said = Say(
            f"{said.en}; most apart in {row.name} ({shares[0]} for {shares[1]})",
            f"{said.zh}；差得最多的是 {row.name}（真实 {shares[0]}，纸面 {shares[1]}）",
        )
    on_the_way = [r for r in state.on_the_way
                  if (r.format, r.exponent) == ("fp16", total.exponent) and r.of]  # fmt: skip
    lost = max(on_the_way, key=lambda r: r.zeros / r.of, default=None)
    if lost is None or not lost.zeros:
        return Say(f"{said.en}.", f"{said.zh}。")
    where = Say(f"the output of {lost.name}", f"{lost.name} 的输出") if lost.name else Say(
        "the logits", "logits")  # fmt: skip
    return Say(
        f"{said.en}. On the way there {_share(lost, lost.zeros)} of the gradient of {where.en} is "
        "zero.",
        f"{said.zh}。反向途中，{where.zh}的梯度有 {_share(lost, lost.zeros)} 为 0。",
    )
