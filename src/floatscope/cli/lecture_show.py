"""Demonstrations for the terminal: title, why, tables, what they show, patch, history, calls."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.table import Table as RichTable
from rich.text import Text

from floatscope.cli.console import output
from floatscope.lab.lecture.telling.words import Language, Sentence, Table, Told, Words

INDENT = 4
_WIDE = r"[\u2e80-\u9fff\uff00-\uffef]"
_UNBREAKABLE = re.compile(
    rf"[（“【]*(?:{_WIDE}|(?:(?!{_WIDE})[^\s（“【）”】，。；：])+)[）”】，。；：、]*\s*|\s+|."
)
_TIED = "\ue000%"
"""A percent sign that goes with the number before it."""

DEMONSTRATIONS = (1, 2, 3, 4, 5)
TAKES = {1: "0.3 s", 2: "4 s", 3: "20 s", 4: "10 s", 5: "2 min"}
"""On two quiet cores, the base model cached."""

LABELS = {
    "why": Words("Why", "为什么"),
    "shown": Words("What it shows", "观察"),
    "patch": Words("Patch", "补丁"),
    "history": Words("Reported", "文献"),
    "calls": Words("Torch calls", "用到的 PyTorch 调用"),
    "otherwise": Words("[not as in the document] ", "【与讲义不同】"),
}


def told(number: int) -> Any:
    """The module with what a demonstration says."""
    return import_module(f"floatscope.lab.lecture.telling.demo{number}")


def show_list(language: Language, as_json: bool) -> None:
    """The five, a line each."""
    found: dict[int, Told] = {number: told(number).TOLD for number in DEMONSTRATIONS}
    if as_json:
        from floatscope.cli.plain import print_json

        print_json([
            {"demonstration": number, "title": t.title.of(language)} for number, t in found.items()
        ])  # fmt: skip
        return
    table = RichTable(box=None, padding=(0, 2, 0, 0), show_header=False)
    for number, t in found.items():
        table.add_row(str(number), t.title.of(language), Text(TAKES[number], style="dim"))
    output.print(table)
    how = Words(
        "\nfloatscope lecture 1, or several, or all. Numbers 3 to 5 need the base model, which "
        "is trained the first time: two minutes more.",
        "\n用法：floatscope lecture 1，可以写几个编号，或 all。3 到 5 需要 base model，第一次要先"
        "训练，多两分钟。",
    )
    output.print(how.of(language))


def show(number: int, record: Any, seconds: float, language: Language) -> None:
    """Print one demonstration."""
    module = told(number)
    words: Told = module.TOLD
    output.rule(Text(f"{number}  {words.title.of(language)}", style="bold"), align="left")
    _paragraph(LABELS["why"], words.why, language)
    for table in module.tables(record):
        output.print()
        for line in wrapped(table.title.of(language), output.width):
            output.print(Text(line))
        output.print(_table(table, language))
    output.print()
    output.print(Text(LABELS["shown"].of(language), style="bold"))
    for index, sentence in enumerate(module.observations(record), start=1):
        _item(index, sentence, language)
    _paragraph(LABELS["patch"], words.patch, language)
    for sentence in words.history:
        source = f" ({sentence.source})" if language == "en" else f"（{sentence.source}）"
        text = Words(sentence.words.en + source, sentence.words.zh + source)
        _paragraph(LABELS["history"], text, language)
    calls = Words(words.calls, words.calls)
    _paragraph(LABELS["calls"], calls, language)
    output.print(Text(f"{seconds:.1f} s\n", style="dim"))


def _paragraph(label: Words, words: Words, language: Language) -> None:
    colon = "：" if language == "zh" else ": "
    first, *rest = wrapped(label.of(language) + colon + words.of(language), output.width)
    name = len(label.of(language) + colon)
    output.print(Text.assemble((first[:name], "bold"), first[name:]))
    for line in rest:
        output.print(Text(line))


def _item(number: int, sentence: Sentence, language: Language) -> None:
    prefix = "" if sentence.holds else LABELS["otherwise"].of(language)
    lines = wrapped(prefix + sentence.words.of(language), output.width - INDENT)
    for index, line in enumerate(lines):
        mark = "" if index else f"{number}."
        output.print(Text(mark.ljust(INDENT) + line))


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most so many columns.

    Chinese is broken between any two characters, but not before a closing mark or after an opening
    one, everything else at blanks, but not before a percent sign.
    """
    lines = [""]
    for part in _UNBREAKABLE.findall(text.replace(" %", _TIED)):
        if cell_len((lines[-1] + part).rstrip()) > width and lines[-1]:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
            part = part.lstrip()
        lines[-1] += part
    return [line.replace(_TIED, " %") for line in lines]


def _table(table: Table, language: Language) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    words = (0, len(table.header) - 1) if table.ends_in_words else (0,)
    for index, header in enumerate(table.header):
        justify = "left" if index in words else "right"
        drawn.add_column(header.of(language), justify=justify, no_wrap=True, vertical="bottom")
    for row in table.rows:
        drawn.add_row(*(c.of(language) if isinstance(c, Words) else c for c in row))
    return drawn
