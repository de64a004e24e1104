"""Figures as files of their own, for papers: SVG and PNG, light, without a page's style."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from floatscope.files import write_atomically, write_text_atomically
from floatscope.report.page_text import HERE
from floatscope.report.section import Section

INK = "#1b2230"
PIXELS_PER_UNIT = 2.0
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_LIGHT = re.compile(r"(--[\w-]+): light-dark\(([^,]+),")


def write_figures(sections: Sequence[Section], folder: Path) -> int:
    """Write every figure to `folder`; returns how many.

    Raises:
        DiskError: the folder cannot be written.
    """
    import vl_convert

    figures = [figure for section in sections for figure in section.figures]
    for figure in figures:
        svg = standing_alone(str(figure.svg))
        png = vl_convert.svg_to_png(svg, scale=PIXELS_PER_UNIT)
        write_text_atomically(folder / f"{figure.name}.svg", svg)
        write_atomically(folder / f"{figure.name}.png", lambda path, png=png: _write(path, png))
    return len(figures)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def standing_alone(svg: str) -> str:
    """The picture with the light theme's colors in place of the page's variables, and a size."""
    style = (HERE / "page" / "page.css").read_text(encoding="utf-8")
    colors = dict(_LIGHT.findall(style))
    svg = _VARIABLE.sub(lambda match: colors[match[1]], svg).replace("currentColor", INK)
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
