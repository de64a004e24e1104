"""What the two instruments need: the catalogue as data, and the page of the instruments alone."""

from __future__ import annotations

from typing import Any

from floatscope.formats import CATALOGUE, BlockFormat, FloatFormat, Format, IntFormat
from floatscope.formats.catalogue import E2M1FN, E2M3FN, E3M2FN, E4M3FN, E5M2, INTEGERS
from floatscope.report.page_text import templates
from floatscope.report.scripts import joined
from floatscope.report.section import Section
from floatscope.report.shell import Page, json_block, rendered
from floatscope.report.words import Say

ELEMENTS = (E4M3FN, E5M2, E2M3FN, E3M2FN, E2M1FN, *INTEGERS)
"""What the bench rounds to."""


def section() -> Section:
    """The instruments, which need no study."""
    return Section(
        name="instruments",
        title=Say("Instruments: bits and blocks", "工具：位与分块"),
        values={
            "catalogue": [format_data(form) for form in CATALOGUE.values()],
            "elements": [element_data(form) for form in ELEMENTS],
        },
    )


def format_data(form: Format) -> dict[str, Any]:
    """A format as the explorer has it."""
    if isinstance(form, BlockFormat):
        return {"kind": "block", "name": form.name, "element": format_data(form.element),
                "scale": format_data(form.scale)}  # fmt: skip
    if isinstance(form, IntFormat):
        return {"kind": "int", "name": form.name, "width": form.width,
                "stepExponent": form.step_exponent}  # fmt: skip
    return {
        "kind": "float", "name": form.name, "exponentBits": form.exponent_bits,
        "fractionBits": form.fraction_bits, "bias": form.bias, "specials": form.specials.value,
        "signed": form.signed, "zero": form.zero,
    }  # fmt: skip


def element_data(form: FloatFormat | IntFormat) -> dict[str, Any]:
    """An element format in the numbers that the bench computes with; all are exact."""
    is_float = isinstance(form, FloatFormat)
    return {
        "name": form.name,
        "width": form.width,
        "fractionBits": form.fraction_bits if is_float else 0,
        "emin": form.emin if is_float else 0,
        "max": float(form.max),
        "min": float(-form.max if is_float else form.min),
        "step": 0 if is_float else float(form.step),
    }


def explorer(page: Page) -> str:
    """The page of the instruments alone."""
    instruments = section()
    content = templates().get_template("instruments.html").render(
        section=instruments, page=page, json=json_block, **instruments.values
    )  # fmt: skip
    return rendered("explore.html", page, [joined("explore")], {"content": content})
