"""A decision as Markdown, in one of two languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from floatscope.lab.decision.records import Criterion, Decision, Evidence, Missing, Said

Language = Literal["en", "zh"]

_WORDS = {
    "title": Said(en="Decision on the study {}: {}{}", zh="研究 {} 的拍板：{}{}"),
    "answers": Said(en="Three questions", zh="三个问题"),
    "criteria": Said(en="Acceptance criteria", zh="验收标准"),
    "limits": Said(en="Limits", zh="限制"),
    "records": Said(en="Records", zh="记录"),
    "where": Said(
        en="Files and fields that the numbered statements rest on; decision.json has every value.",
        zh="各条编号陈述所依据的文件和字段；每个数值都在 decision.json 里。",
    ),
    "criterion": Said(en="{}. {}: **{}**. {}", zh="{}. {}：**{}**。{}"),
    "missing": Said(en="not measured: {}. Command: `{}`", zh="未测量：{}。命令：`{}`"),
    "true": Said(en="holds", zh="成立"),
    "false": Said(en="does not hold", zh="不成立"),
    "none": Said(en="not measured", zh="未测量"),
    "provisional": Said(en=" (provisional)", zh="（暂定）"),
    "nothing": Said(en="no recipe", zh="无"),
}


def markdown(decision: Decision, language: Language) -> str:
    """Choice, answers, criteria and limits, and the records that each statement rests on."""
    return "\n".join(_lines(decision, language)) + "\n"


def _lines(decision: Decision, language: Language) -> Iterator[str]:
    def word(name: str) -> str:
        return _in(language, _WORDS[name])

    notes: list[tuple[Evidence, ...]] = []
    chosen = decision.choice.recipe or word("nothing")
    aside = "" if decision.choice.settled else word("provisional")
    yield f"# {word('title').format(decision.study, chosen, aside)}"
    yield f"\n{_in(language, decision.choice.because)}"
    yield f"\n## {word('answers')}"
    for number, answer in enumerate(decision.answers, start=1):
        yield f"\n### {number}. {_in(language, answer.question)}\n"
        for statement in answer.statements:
            yield f"- {_in(language, statement.text)}{_noted(statement.evidence, notes)}"
        for lacking in answer.missing:
            yield f"- {_missing(lacking, language)}"
    yield f"\n## {word('criteria')}\n"
    for number, criterion in enumerate(decision.criteria, start=1):
        lacking = criterion.missing
        text = _in(language, criterion.text) if lacking is None else _missing(lacking, language)
        noted = _noted(criterion.evidence, notes)
        what, holds = _in(language, criterion.what), word(_holds(criterion))
        yield word("criterion").format(number, what, holds, text) + noted
    yield f"\n## {word('limits')}\n"
    for limit in decision.limits:
        yield f"- {_in(language, limit)}"
    yield f"\n## {word('records')}\n\n{word('where')}\n"
    for number, evidence in enumerate(notes, start=1):
        yield f"{number}. {_places(evidence)}"


def _in(language: Language, said: Said) -> str:
    return said.zh if language == "zh" else said.en


def _noted(evidence: tuple[Evidence, ...], notes: list[tuple[Evidence, ...]]) -> str:
    """The number of a note on where a statement comes from; nothing if it rests on others."""
    if not evidence:
        return ""
    notes.append(evidence)
    return f" [{len(notes)}]"


def _holds(criterion: Criterion) -> str:
    return {True: "true", False: "false", None: "none"}[criterion.holds]


def _missing(lacking: Missing, language: Language) -> str:
    return _in(language, _WORDS["missing"]).format(_in(language, lacking.what), lacking.command)


def _places(evidence: tuple[Evidence, ...]) -> str:
    """The records behind a statement: fields, and the files that they are in."""
    fields: dict[str, list[str]] = {}
    for one in evidence:
        fields.setdefault(one.record, []).append(one.field)
    records: dict[str, list[str]] = {}
    for record, found in fields.items():
        records.setdefault(", ".join(f"`{f}`" for f in dict.fromkeys(found)), []).append(record)
    return "; ".join(f"{_common(found)}: {of}" for of, found in records.items())


def _common(records: list[str]) -> str:
    """One path for several that differ in a folder alone, such as `runs/*/metrics.parquet`."""
    if len(records) == 1:
        return f"`{records[0]}`"
    first, last = records[0].split("/")[0], records[0].split("/")[-1]
    return f"`{first}/*/{last}` ({len(records)})"
