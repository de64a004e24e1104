"""`floatscope formats`: the number formats, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from floatscope.formats import BlockFormat, FloatFormat, Format, IntFormat


def formats(
    names: Annotated[
        list[str] | None, typer.Argument(help="Formats to show; all, if none is named.")
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Only where the named ones differ.")] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Every value, for formats of 8 bits or fewer.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show number formats: layout, range, precision, special codes, source."""
    from floatscope.errors import FormatError
    from floatscope.formats import CATALOGUE, FloatFormat, IntFormat
    from floatscope.formats import format as format_called

    chosen = [format_called(name) for name in names] if names else list(CATALOGUE.values())
    if values:
        for form in chosen:
            if not isinstance(form, (FloatFormat, IntFormat)) or form.width > 8:
                raise FormatError(f"--values lists formats of 8 bits or fewer, not {form.name}.")
        _print_values(chosen, json)
        return
    facts = [_facts(form) for form in chosen]
    if diff:
        if len(facts) < 2:
            raise FormatError("--diff compares two or more formats; name them.")
        facts = _differing(facts)
    if json:
        import json as json_module

        print(json_module.dumps(facts, indent=2, ensure_ascii=False))
    else:
        _print_facts(facts, across=diff)


def _facts(form: Format) -> dict[str, Any]:
    """What the table shows, a string a fact, in the order of its columns."""
    from floatscope.formats import BlockFormat, IntFormat

    if isinstance(form, BlockFormat):
        return _block_facts(form)
    if isinstance(form, IntFormat):
        return _int_facts(form)
    return _float_facts(form)


def _float_facts(form: FloatFormat) -> dict[str, Any]:
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
        "source": form.source,
    }


def _has(form: FloatFormat) -> list[str]:
    has = {"inf": form.has_infinity, "NaN": form.has_nan, "-0": form.has_negative_zero}
    return [name for name, present in has.items() if present]


def _int_facts(form: IntFormat) -> dict[str, Any]:
    from floatscope.formats.show import shown

    return {
        "name": form.name,
        "bits": str(form.width),
        "max": shown(form.max),
        "min": shown(form.min),
        "step": shown(form.step),
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
    return [{k: fact.get(k, "–") for k in kept} for fact in facts]


def _print_facts(facts: list[dict[str, Any]], *, across: bool) -> None:
    """One table for each kind of format, or one with the formats side by side."""
    if across:
        rows = [[key, *(fact[key] for fact in facts)] for key in facts[0]]
        _print_table(rows)
        return
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for fact in facts:
        kinds.setdefault(tuple(fact), []).append(fact)
    for index, (keys, group) in enumerate(kinds.items()):
        if index:
            print()
        columns = [k for k in keys if k != "source" or len(facts) <= 4]
        _print_table([columns, *([fact[k] for k in columns] for fact in group)])


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _print_values(chosen: list[Any], as_json: bool) -> None:
    from floatscope.formats import FloatFormat, decode
    from floatscope.formats.show import shown

    listed: dict[str, dict[str, str]] = {}
    for form in chosen:
        digits = (form.width + 3) // 4
        listed[form.name] = {
            f"0x{code:0{digits}x}": shown(
                decode(code, form) if isinstance(form, FloatFormat) else form.decode(code)
            )
            for code in range(form.num_codes)
        }
    if as_json:
        import json

        print(json.dumps(listed, indent=2, ensure_ascii=False))
        return
    for name, codes in listed.items():
        print(name)
        cells = [f"{code} {value}" for code, value in codes.items()]
        width = max(map(len, cells)) + 2
        per_line = max(1, 80 // width)
        for first in range(0, len(cells), per_line):
            print("".join(c.ljust(width) for c in cells[first : first + per_line]).rstrip())
