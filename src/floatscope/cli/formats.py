"""`floatscope formats`: the number formats, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from floatscope.formats import BlockFormat, FloatFormat, Format, IntFormat
    from floatscope.rounding.rules import ScalarFormat


@click.command(short_help="Show number formats, and what casts do at their edges.")
@click.argument("names", nargs=-1, help="Formats to show; all, if none is named.")
@click.option("--diff", is_flag=True, help="Only where the named ones differ.")
@click.option("--values", is_flag=True, help="Every value, for formats of 8 bits or fewer.")
@click.option(
    "--rules",
    metavar="NAME",
    help="Whose casts to show at the edges: the standard's, or a library's such as torch-2.13.",
)
@click.option(
    "--diff-rules",
    nargs=2,
    metavar="NAME NAME",
    help="Only where two sets of rules differ, format by format.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def formats(
    names: tuple[str, ...],
    diff: bool,
    values: bool,
    rules: str | None,
    diff_rules: tuple[str, str] | None,
    as_json: bool,
) -> None:
    """Show number formats: layout, range, precision, special codes, casts at the edges, source."""
    from floatscope.cli.edges import formats_under
    from floatscope.errors import FormatError
    from floatscope.formats import CATALOGUE
    from floatscope.formats import format as format_called

    _insist_on_one({"--diff": diff, "--values": values, "--diff-rules": diff_rules})
    _insist_on_one({"--rules": rules, "--values": values, "--diff-rules": diff_rules})
    if diff_rules:
        _print_rules(formats_under(diff_rules, names, CATALOGUE), diff_rules, as_json)
        return
    chosen: Sequence[Format] = [format_called(name) for name in names or CATALOGUE]
    if values:
        _print_values(chosen, as_json)
        return
    if rules:
        chosen = formats_under([rules], names, CATALOGUE)
    facts = [_facts(form, rules or "standard") for form in chosen]
    if diff:
        if len(facts) < 2:
            raise FormatError("--diff compares two or more formats; name them.")
        facts = _differing(facts)
    if as_json:
        from floatscope.cli.plain import print_json

        print_json(facts)
    else:
        _print_facts(facts, rules or "standard", across=diff)


def _insist_on_one(options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} do not go together.")


def _facts(form: Format, rules: str) -> dict[str, Any]:
    """What the table shows, a string a fact, in the order of its columns."""
    from floatscope.formats import BlockFormat, IntFormat

    if isinstance(form, BlockFormat):
        return _block_facts(form)
    if isinstance(form, IntFormat):
        return _int_facts(form, rules)
    return _float_facts(form, rules)


def _float_facts(form: FloatFormat, rules: str) -> dict[str, Any]:
    from floatscope.cli.edges import edge_facts
    from floatscope.formats.show import shown

    overflow = "≥" if form.tie_overflows else ">"
    return {
        "name": form.name,
        "bits": f"{int(form.signed)}+{form.exponent_bits}+{form.fraction_bits}",
        "bias": str(form.bias),
        "max": shown(form.max),
        "smallest normal": shown(form.smallest_normal),
        "smallest": shown(form.smallest),
        "eps": shown(form.eps),
        "octaves": str(form.num_octaves),
        "to zero": f"≤ {shown(form.zero_threshold)}" if form.zero else "–",
        "overflows": f"{overflow} {shown(form.overflow_threshold)}",
        "has": ", ".join(_has(form)) or "–",
        "rules": rules,
        **edge_facts(form, rules),
        "source": form.source,
    }


def _has(form: FloatFormat) -> list[str]:
    has = {"inf": form.has_infinity, "NaN": form.has_nan, "-0": form.has_negative_zero}
    return [name for name, present in has.items() if present]


def _int_facts(form: IntFormat, rules: str) -> dict[str, Any]:
    from floatscope.cli.edges import edge_facts
    from floatscope.formats.show import shown

    return {
        "name": form.name,
        "bits": str(form.width),
        "max": shown(form.max),
        "min": shown(form.min),
        "step": shown(form.step),
        "rules": rules,
        **edge_facts(form, rules),
        "source": form.source,
    }


def _block_facts(form: BlockFormat) -> dict[str, Any]:
    block = form.block if isinstance(form.block, str) else "×".join(map(str, form.block))
    scale = form.scale.name + (f" × {form.tensor_scale.name}" if form.tensor_scale else "")
    bits = form.bits_per_value
    return {
        "name": form.name,
        "element": form.element.name,
        "block": block,
        "scale": scale,
        "scale rule": form.rule.value,
        "bits a value": "–" if bits is None else f"{bits:g}",
        "source": form.source,
    }


def _differing(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = list(dict.fromkeys(key for fact in facts for key in fact))
    kept = [k for k in keys if k == "name" or len({fact.get(k) for fact in facts}) > 1]
    return [{k: fact.get(k, "–") for k in kept if k != "rules"} for fact in facts]


def _print_facts(facts: list[dict[str, Any]], rules: str, *, across: bool) -> None:
    """One table for each kind of format, or one with the formats side by side."""
    from floatscope.cli.plain import print_table

    if across:
        print_table([[key, *(fact[key] for fact in facts)] for key in facts[0]])
    else:
        kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for fact in facts:
            kinds.setdefault(tuple(fact), []).append(fact)
        hidden = {"rules"} if len(facts) <= 4 else {"rules", "source"}
        for index, (keys, group) in enumerate(kinds.items()):
            if index:
                print()
            columns = [key for key in keys if key not in hidden]
            print_table([columns, *([fact[key] for key in columns] for fact in group)])
    if any(key.endswith(" to") for fact in facts for key in fact):
        _print_whose(rules)


def _print_whose(rules: str) -> None:
    from floatscope.rounding.rules import PRESETS

    others = ", ".join(name for name in PRESETS if name != rules)
    print(f'\nOverflow, inf and NaN by the rules "{rules}"; others with --rules: {others}.')


def _print_rules(chosen: list[ScalarFormat], names: tuple[str, str], as_json: bool) -> None:
    """Which fields of `Rules` two presets set differently, and what they treat alike."""
    from floatscope.cli.edges import differences
    from floatscope.cli.plain import print_json, print_table

    found = {form.name: differences(form, *names) for form in chosen}
    if as_json:
        print_json(found)
        return
    rows = [
        [form, field, *values.values()]
        for form, fields in found.items()
        for field, values in fields.items()
    ]
    if rows:
        print_table([["format", "field", *names], *rows])
    if alike := [form for form, fields in found.items() if not fields]:
        print(f"alike in both: {', '.join(alike)}")


def _print_values(chosen: Sequence[Format], as_json: bool) -> None:
    from floatscope.cli.plain import print_json
    from floatscope.errors import FormatError
    from floatscope.formats import FloatFormat, IntFormat, decode
    from floatscope.formats.show import shown

    listed: dict[str, dict[str, str]] = {}
    for form in chosen:
        if not isinstance(form, (FloatFormat, IntFormat)) or form.width > 8:
            raise FormatError(f"--values lists formats of 8 bits or fewer, not {form.name}.")
        digits = (form.width + 3) // 4
        listed[form.name] = {
            f"0x{code:0{digits}x}": shown(
                decode(code, form) if isinstance(form, FloatFormat) else form.decode(code)
            )
            for code in range(form.num_codes)
        }
    if as_json:
        print_json(listed)
        return
    for name, codes in listed.items():
        print(name)
        cells = [f"{code} {value}" for code, value in codes.items()]
        width = max(map(len, cells)) + 2
        per_line = max(1, 80 // width)
        for first in range(0, len(cells), per_line):
            print("".join(c.ljust(width) for c in cells[first : first + per_line]).rstrip())
