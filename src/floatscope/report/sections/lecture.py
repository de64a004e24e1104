"""The lecture's demonstrations: their figures and what they found, from their records."""

from __future__ import annotations

from typing import Any

from floatscope.lab.lecture.figures import figure as specification
from floatscope.lab.lecture.keep import DemoFile
from floatscope.lab.lecture.telling import demo1, demo2, demo3, demo4, demo5
from floatscope.lab.lecture.telling.words import Table, Words, same
from floatscope.report.charts import CONFIG, SCHEMA, VEGA_LITE
from floatscope.report.evidence import Evidence
from floatscope.report.figure import Figure
from floatscope.report.section import Section
from floatscope.report.svg import compact
from floatscope.report.words import Say

TELLINGS = {1: demo1, 2: demo2, 3: demo3, 4: demo4, 5: demo5}
"""What each demonstration says."""
PADDING = {"left": 12, "right": 20, "top": 4, "bottom": 4}
"""Around a picture: the reader's font may be wider than the one that it was laid out with."""


def section(evidence: Evidence) -> Section:
    """The section; pending without a record of any demonstration."""
    title = Say("The lecture: five demonstrations", "课堂演示：五个实验")
    problem = evidence.damaged.get("lecture", "")
    if not evidence.lectures:
        command = f"floatscope lecture all --out {evidence.place}"
        return Section(name="lecture", title=title, command=command, problem=problem)
    figures = tuple(_figure(file) for file in evidence.lectures)
    return Section(
        name="lecture",
        title=title,
        problem=problem,
        figures=figures,
        values={
            "demonstrations": [
                {
                    "number": file.demonstration,
                    "told": TELLINGS[file.demonstration].TOLD,
                    "figure": drawn,
                    "observations": [*TELLINGS[file.demonstration].observations(file.record)],
                    "tables": [_table(t) for t in TELLINGS[file.demonstration].tables(file.record)],
                }
                for file, drawn in zip(evidence.lectures, figures, strict=True)
            ],
            "machines": list(dict.fromkeys(map(_machine, evidence.lectures))),
        },
    )


def _table(table: Table) -> dict[str, Any]:
    """A table whose every cell is in both languages."""
    both = [[cell if isinstance(cell, Words) else same(cell) for cell in row] for row in table.rows]
    return {**vars(table), "rows": both}


def _machine(file: DemoFile[Any]) -> str:
    where = file.environment
    commit = f", commit {where.commit[:10]}" if where.commit else ""
    return f"{where.processor}, {where.cores} cores, Torch {where.packages['torch']}{commit}"


def _figure(file: DemoFile[Any]) -> Figure:
    import vl_convert

    words = TELLINGS[file.demonstration].TOLD
    spec = {
        "$schema": SCHEMA, "background": None, "padding": PADDING, "config": CONFIG,
        **specification(file.demonstration, file.record),
    }  # fmt: skip
    return Figure(
        name=f"lecture-{file.demonstration}",
        title=Say(words.caption.en, words.caption.zh),
        svg=compact(vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)),
    )
