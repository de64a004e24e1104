"""Templates in two languages.

In a template, `[[English||中文]]` stands for both, of which the page shows one. Everything that is
filled in is escaped.
"""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.ext import Extension

from floatscope.report import words

HERE = Path(__file__).parent
MACROS = ("grade", "figure", "pending", "problem", "answers")
_BOTH = re.compile(r"\[\[(.*?)\|\|(.*?)\]\]", re.DOTALL)


class _TwoLanguages(Extension):
    """Turns `[[English||中文]]` into two marked spans."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        spans = r'<span class="en" lang="en">\1</span><span class="zh" lang="zh">\2</span>'
        return _BOTH.sub(spans, source)


def templates() -> Environment:
    """The templates, with the ways in which numbers and names are written."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        extensions=[_TwoLanguages],
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"name": words.isolated, "grouped": words.grouped}
    macros = environment.get_template("macros.html").module
    environment.globals |= {name: getattr(macros, name) for name in MACROS}
    return environment
