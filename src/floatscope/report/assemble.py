"""From evidence to one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup

from floatscope.report import instruments
from floatscope.report.evidence import Evidence
from floatscope.report.page_text import templates
from floatscope.report.scripts import joined, runtime
from floatscope.report.section import Section
from floatscope.report.sections import (
    autocast,
    closing,
    compare,
    conclusions,
    decision,
    lecture,
    loss,
    map,
    memory,
    number_line,
    predict,
    provenance,
    verdict,
    zeros,
)
from floatscope.report.shell import Page, json_block, rendered

SECTIONS: tuple[Callable[[Evidence], Section], ...] = (
    verdict.section,
    predict.section,
    loss.section,
    zeros.section,
    number_line.section,
    autocast.section,
    map.section,
    memory.section,
    lecture.section,
    compare.section,
    conclusions.section,
    decision.section,
    lambda _: instruments.section(),
    provenance.section,
    closing.section,
)


def sections_of(evidence: Evidence) -> list[Section]:
    """Every section, in the page's order."""
    return [make(evidence) for make in SECTIONS]


def assembled(evidence: Evidence, sections: Sequence[Section], page: Page) -> str:
    """The whole page as one HTML file."""
    environment = templates()
    content = {
        section.name: Markup(
            environment.get_template(f"{section.name}.html").render(
                section=section,
                evidence=evidence,
                summary=evidence.summary,
                page=page,
                json=json_block,
                **section.values,
            )
        )
        for section in sections
        if not section.command
    }
    live = {f.name: f.live for s in sections for f in s.figures if f.live is not None}
    return rendered(
        "report.html",
        page,
        [] if page.is_static else [runtime(), joined("main")],
        {"evidence": evidence, "sections": sections, "content": content,
         "live": {} if page.is_static else live},
    )  # fmt: skip


def default_path(folder: Path) -> Path:
    """Where the report of a study goes."""
    return folder / "report.html"
