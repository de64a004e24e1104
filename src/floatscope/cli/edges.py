"""What a cast does at the edges of a format: in words, and where two sets of rules differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from floatscope.errors import FormatError, unknown
from floatscope.formats import BlockFormat, IntFormat
from floatscope.formats import format as format_called
from floatscope.rounding.rules import PRESETS, ScalarFormat, rules_for

BEYOND = {"to_inf": "inf", "to_nan": "NaN", "saturate": "max", "raise": "error"}
NAN = {"keep": "NaN", "raise": "error", "max": "max", "zero": "0", "opposite_zero": "opposite 0"}
NEGATIVE = {
    "to_nan": "NaN", "magnitude": "magnitude", "saturate": "smallest", "raise": "error",
}  # fmt: skip
ZERO = {"to_nan": "NaN", "saturate": "smallest", "raise": "error"}


def formats_under(
    rules: Sequence[str], named: Iterable[str], otherwise: Iterable[str]
) -> list[ScalarFormat]:
    """The formats that are named; if none is, those of `otherwise` that all the rules speak of.

    Raises:
        FormatError: no such rules; or they say nothing of a named format, which may be one of
            blocks.
    """
    for name in rules:
        if name not in PRESETS:
            raise FormatError(unknown("rules", name, PRESETS))
    chosen: list[ScalarFormat] = []
    for form in map(format_called, named):
        if isinstance(form, BlockFormat):
            raise FormatError(
                f"{form.name} is no float format and no integer format: it is one of blocks, whose "
                f"elements are {form.element.name}."
            )
        for name in rules:
            rules_for(form, name)
        chosen.append(form)
    return chosen or [
        form
        for form in map(format_called, otherwise)
        if not isinstance(form, BlockFormat) and all(_covers(name, form) for name in rules)
    ]


def edge_facts(form: ScalarFormat, name: str) -> dict[str, str]:
    """What the rules called `name` make of overflow, infinity and NaN; "max" has the value's sign.

    A format without sign or without zero has a fact more for each.
    """
    rules = rules_for(form, name)
    facts = {
        "overflow to": BEYOND[rules.overflow],
        "inf to": BEYOND[rules.infinity],
        "NaN to": NAN[rules.nan],
    }
    if isinstance(form, IntFormat):
        return {key: "max or min" if fact == "max" else fact for key, fact in facts.items()}
    if not form.signed:
        facts["negative to"] = NEGATIVE[rules.negative]
    if not form.zero:
        facts["0 to"] = ZERO[rules.zero]
    return facts


def differences(form: ScalarFormat, one: str, other: str) -> dict[str, dict[str, str]]:
    """The fields of `Rules` that two presets set differently for a format, with both values."""
    ones, others = (asdict(rules_for(form, name)) for name in (one, other))
    return {
        field: {one: str(ones[field]), other: str(others[field])}
        for field in ones
        if field != "name" and ones[field] != others[field]
    }


def _covers(name: str, form: ScalarFormat) -> bool:
    try:
        rules_for(form, name)
    except FormatError:
        return False
    return True
