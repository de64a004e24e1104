"""From evidence to one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from floatscope.report.evidence import Evidence
from floatscope.report.page_text import HERE, templates
from floatscope.report.scripts import digest, joined, runtime
from floatscope.report.section import Section
from floatscope.report.sections import (
    autocast,
    loss,
    number_line,
    predict,
    provenance,
    verdict,
    zeros,
)

SECTIONS: tuple[Callable[[Evidence], Section], ...] = (
    verdict.section,
    predict.section,
    loss.section,
    zeros.section,
    number_line.section,
    autocast.section,
    provenance.section,
)


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is asked of a page."""

    language: str = "en"
    """Shown first: "en" or "zh"."""
    is_static: bool = False
    """Without scripts."""


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


def rendered(template: str, page: Page, scripts: list[str], values: dict[str, Any]) -> str:
    """A template with the page's style, its scripts and the policy that lets in these alone."""
    allowed = " ".join(map(digest, scripts)) or "'none'"
    policy = "; ".join((
        "default-src 'none'",
        f"script-src {allowed}",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ))  # fmt: skip
    return templates().get_template(template).render(
        page=page,
        policy=policy,
        style=Markup((HERE / "page" / "page.css").read_text(encoding="utf-8")),
        scripts=[Markup(script) for script in scripts],
        json=json_block,
        **values,
    )  # fmt: skip


def json_block(value: Any) -> Markup:
    """JSON that stands inside a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def default_path(folder: Path) -> Path:
    """Where the report of a study goes."""
    return folder / "report.html"
