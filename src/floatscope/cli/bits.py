"""`floatscope bits`: one number in several formats, bit by bit."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fractions import Fraction

    from rich.text import Text

    from floatscope.formats import FloatFormat
    from floatscope.formats.values import Value

DEFAULT_FORMATS = ("fp32", "fp16", "bf16", "e4m3fn", "e5m2")


def bits(
    value: Annotated[
        str,
        typer.Argument(
            help="A decimal, a hex float (0x1.8p-3), inf, nan, or a code such as 0x3c00."
        ),
    ],
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", "-f", help="A float format; may be given several times."),
    ] = None,
    rounding: Annotated[str, typer.Option(help="How to round.")] = "nearest-even",
    overflow: Annotated[
        str | None,
        typer.Option(
            help="saturate, to_inf, to_nan or raise; to_inf where the format has infinity, else "
            "saturate."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show what formats make of a number: bits, stored value, error, ulp and neighbors.

    A code is read in the first format named. Write a negative number behind --.
    """
    from floatscope.errors import FormatError
    from floatscope.formats import FloatFormat
    from floatscope.formats import format as format_called

    chosen = [format_called(name) for name in formats or DEFAULT_FORMATS]
    floats = [form for form in chosen if isinstance(form, FloatFormat)]
    for form in chosen:
        if not isinstance(form, FloatFormat):
            raise FormatError(f"{form.name} is no float format; bits shows one value's bits.")
    exact = _read(value, floats[0])
    facts = [_facts(exact, form, rounding, overflow) for form in floats]
    if json:
        import json as json_module

        print(json_module.dumps(facts, indent=2, ensure_ascii=False))
        return
    for form, fact in zip(floats, facts, strict=True):
        _print(form, fact)


def _read(text: str, form: FloatFormat) -> Value:
    """A number, or the value of a code if `text` is a plain hexadecimal integer."""
    from floatscope.formats import decode
    from floatscope.formats.values import exactly

    lowered = text.strip().lower()
    if re.fullmatch(r"0x[0-9a-f]+", lowered):
        return decode(int(lowered, 16), form)
    return exactly(text)


def _facts(exact: Value, form: FloatFormat, rounding: str, overflow: str | None) -> dict[str, Any]:
    from floatscope.errors import FormatError
    from floatscope.formats import encode, neighbors, ulp
    from floatscope.formats.show import shown
    from floatscope.rounding import round_value

    policy = overflow or ("to_inf" if form.has_infinity else "saturate")
    try:
        stored = round_value(exact, form, rounding=rounding, overflow=policy)  # type: ignore[arg-type]
    except FormatError as error:
        return {"format": form.name, "refused": str(error)}
    code = encode(stored, form)
    facts: dict[str, Any] = {
        "format": form.name,
        "code": f"0x{code:0{(form.width + 3) // 4}x}",
        "bits": format(code, f"0{form.width}b"),
        "stored": shown(stored),
        "exactly": _exactly(stored),
    }
    if _is_finite(stored) and _is_finite(exact):
        facts |= _error(exact, stored)
        facts["ulp"] = shown(ulp(stored, form))
    if stored == stored:  # not NaN
        below, above = neighbors(stored, form)
        facts["below"], facts["above"] = _told_apart(below, form), _told_apart(above, form)
    return facts


def _told_apart(value: Value | None, form: FloatFormat) -> str:
    """A value with enough digits to tell it from its neighbors in the format."""
    from floatscope.formats.show import shown

    text = shown(value)
    if value is None or not text.startswith("≈"):
        return text
    digits = 2 + math.ceil(form.precision * math.log10(2))
    return f"≈{float(value):.{digits}g}"


def _error(exact: Value, stored: Value) -> dict[str, str]:
    from fractions import Fraction

    from floatscope.formats.show import shown

    error = Fraction(stored) - Fraction(exact)
    relative = f"{float(abs(error / Fraction(exact))):.3g}" if exact and error else "0"
    return {"error": shown(error), "relative error": relative}


def _exactly(value: Value) -> str:
    """All decimal digits, where there are not too many of them."""
    from fractions import Fraction

    from floatscope.formats.show import exact_decimal, shown

    if not isinstance(value, Fraction):
        return shown(value)
    digits = exact_decimal(value)
    return digits if len(digits) <= 60 else f"{value.numerator}/{value.denominator}"


def _is_finite(value: Value | Fraction) -> bool:
    return math.isfinite(value)


def _print(form: FloatFormat, fact: dict[str, Any]) -> None:
    from rich.text import Text

    from floatscope.cli.console import output

    if "refused" in fact:
        output.print(Text(f"{form.name:12} {fact['refused']}"))
        return
    output.print(_colored(form, fact))
    stored = fact["exactly"] if len(fact["exactly"]) <= 40 else fact["stored"]
    lines = {"stored": stored}
    if "error" in fact:
        lines["error"] = f"{fact['error']}, relative {fact['relative error']}"
        lines["ulp"] = fact["ulp"]
    if "below" in fact:
        lines["between"] = f"{fact['below']} and {fact['above']}"
    for name, line in lines.items():
        output.print(Text(f"{'':13}{name:8} {line}"))


def _colored(form: FloatFormat, fact: dict[str, Any]) -> Text:
    """The name, the code, and its bits by field: sign, exponent, fraction."""
    from rich.text import Text

    line = Text(f"{form.name:12} {fact['code']:<12}")
    first = 0
    widths = (int(form.signed), form.exponent_bits, form.fraction_bits)
    for width, color in zip(widths, ("red", "green", "blue"), strict=True):
        if width:
            line.append(" ").append(fact["bits"][first : first + width], style=color)
        first += width
    return line
