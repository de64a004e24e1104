"""The shell of a page: style, scripts, and the policy that lets in these alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from floatscope.report.page_text import HERE, templates
from floatscope.report.scripts import digest


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is asked of a page."""

    language: str = "en"
    """Shown first: "en" or "zh"."""
    is_static: bool = False
    """Without scripts."""


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
