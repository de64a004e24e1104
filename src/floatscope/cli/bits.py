"""`floatscope bits`: one number in several formats, bit by bit."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, get_args

import click

if TYPE_CHECKING:
    from floatscope.formats.values import Value
    from floatscope.rounding.rules import ScalarFormat

DEFAULT_FORMATS = ("fp32", "fp16", "bf16", "e4m3fn", "e5m2")

_NEGATIVE = re.compile(r"-(\.?\d|inf|nan)", re.IGNORECASE)


class _NumberCommand(click.Command):
    """A command that takes -0.1 for a number; click takes it for options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" not in args and any(map(_NEGATIVE.match, args)):
            others = [arg for arg in args if not _NEGATIVE.match(arg)]
            args = [*others, "--", *filter(_NEGATIVE.match, args)]
        return super().parse_args(ctx, args)


@click.command(cls=_NumberCommand, short_help="Show what formats make of a number, bit by bit.")
@click.argument(
    "value", help="A decimal, a hex float (0x1.8p-3), inf, nan, or a code such as 0x3c00."
)
@click.option(
    "--format",
    "-f",
    "formats",
    multiple=True,
    help="A float or integer format; may be given several times.",
)
@click.option(
    "--rules",
    metavar="NAME",
    default="standard",
    help="What a cast does at the edges: by the standard, or by a library such as torch-2.13.",
)
@click.option(
    "--rounding",
    help="nearest-even, nearest-away, toward-zero, up, down, to-odd or stochastic; as the rules "
    "have it if not given.",
)
@click.option(
    "--overflow", help="saturate, to_inf, to_nan or raise; as the rules have it if not given."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def bits(
    value: str,
    formats: tuple[str, ...],
    rules: str,
    rounding: str | None,
    overflow: str | None,
    as_json: bool,
) -> None:
    """Show what formats make of a number: bits, stored value, error, ulp and neighbors.

    A code is read in the first format named. Stochastic rounding shows both values that it may
    give, and how probable each is.
    """
    from floatscope.cli.bits_facts import facts_of
    from floatscope.cli.edges import formats_under

    _check_choices(rounding, overflow)
    chosen = formats_under([rules], formats, DEFAULT_FORMATS)
    exact, code = _read(value, chosen[0])
    facts = [
        facts_of(exact, form, rules, rounding, overflow, code if form == chosen[0] else None)
        for form in chosen
    ]
    if as_json:
        from floatscope.cli.plain import print_json

        print_json(facts)
        return
    for form, fact in zip(chosen, facts, strict=True):
        _print(form, fact)


def _check_choices(rounding: str | None, overflow: str | None) -> None:
    """Refuse names that mean nothing in any format."""
    from floatscope.errors import FormatError, unknown
    from floatscope.rounding import Overflow, Rounding

    for what, given, choices in (
        ("rounding", rounding, get_args(Rounding)),
        ("overflow policy", overflow, get_args(Overflow)),
    ):
        if given is not None and given not in choices:
            raise FormatError(unknown(what, given, choices))


def _read(text: str, form: ScalarFormat) -> tuple[Value, int | None]:
    """A number; or the value of a code, and the code, if `text` is a plain hexadecimal integer."""
    from floatscope.formats import FloatFormat, decode
    from floatscope.formats.values import exactly

    lowered = text.strip().lower()
    if re.fullmatch(r"0x[0-9a-f]+", lowered):
        code = int(lowered, 16)
        if not isinstance(form, FloatFormat):
            return form.decode(code), code
        value = decode(code, form)
        if value != value and form.has_negative_zero and code & form.sign_mask:
            value = -value  # other formats keep a NaN's sign
        return value, code
    return exactly(text), None


def _print(form: ScalarFormat, fact: dict[str, Any]) -> None:
    if "refused" in fact:
        _echo(f"{form.name:12} {fact['refused']}")
        return
    for index, outcome in enumerate(fact.get("outcomes", [fact])):
        _echo(_colored("" if index else form.name, form, outcome))
        for name, line in _lines(fact | outcome).items():
            _echo(f"{'':13}{name:8} {line}")


def _echo(line: str) -> None:
    click.echo(line, file=sys.stdout)  # itself, as click writes UTF-8 where that is ASCII


def _lines(outcome: dict[str, str]) -> dict[str, str]:
    """What is said below the bits, by the word in front of it."""
    exactly = outcome["exactly"]
    lines = {"stored": exactly if len(exactly) <= 40 else outcome["stored"]}
    if "decided by" in outcome:
        lines["rules"] = outcome["decided by"]
    if "error" in outcome:
        lines["error"] = f"{outcome['error']}, relative {outcome['relative error']}"
    if "probability" in outcome:  # the outcomes are each other's neighbors
        return lines | {"chance": outcome["probability"]}
    if "ulp" in outcome:
        lines["ulp"] = outcome["ulp"]
    if "below" in outcome:
        lines["between"] = f"{outcome['below']} and {outcome['above']}"
    return lines


def _colored(name: str, form: ScalarFormat, outcome: dict[str, str]) -> str:
    """The name, the code, and its bits; those of a float by field: sign, exponent, fraction."""
    from floatscope.formats import IntFormat

    line = f"{name:12} {outcome['code']:<12}"
    if isinstance(form, IntFormat):
        return f"{line} {outcome['bits']}"
    first = 0
    widths = (int(form.signed), form.exponent_bits, form.fraction_bits)
    for width, color in zip(widths, ("red", "green", "blue"), strict=True):
        if width:
            line += " " + click.style(outcome["bits"][first : first + width], fg=color)
        first += width
    return line
