"""What `floatscope lecture` writes: figures as files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from floatscope.cli.lecture_show import told, wrapped
from floatscope.files import write_atomically, write_text_atomically
from floatscope.lab.lecture.figures import figure
from floatscope.lab.lecture.telling.words import Language
from floatscope.report.charts import CONFIG, SCHEMA, VEGA_LITE
from floatscope.report.papers import PIXELS_PER_UNIT, standing_alone
from floatscope.report.svg import compact

COLUMNS = 76
"""Of a caption's line over a figure."""


def draw(number: int, record: Any, folder: Path, language: Language) -> Path:
    """Write a demonstration's figure with its caption as SVG and PNG; returns the SVG's path.

    A Chinese PNG needs a Chinese font on the system; the SVG takes the reader's.

    Raises:
        DiskError: the folder cannot be written.
    """
    import vl_convert

    spec = {
        "$schema": SCHEMA, "config": CONFIG, "background": "white", "padding": 8,
        "title": _caption(number, language), **figure(number, record),
    }  # fmt: skip
    svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
    svg = standing_alone(str(compact(svg)))
    png = vl_convert.svg_to_png(svg, scale=PIXELS_PER_UNIT)
    path = folder / f"demo-{number}.svg"
    write_text_atomically(path, svg)

    def write(temporary: Path) -> None:
        temporary.write_bytes(png)

    write_atomically(path.with_suffix(".png"), write)
    return path


def _caption(number: int, language: Language) -> dict[str, Any]:
    words = told(number).TOLD
    return {
        "text": words.title.of(language), "subtitle": wrapped(words.caption.of(language), COLUMNS),
        "anchor": "start", "fontSize": 14, "subtitleFontSize": 12, "subtitlePadding": 6,
        "offset": 14, "color": "currentColor", "subtitleColor": "currentColor",
    }  # fmt: skip
