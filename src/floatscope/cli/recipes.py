"""`floatscope recipes`: what each recipe stores, multiplies and scales, role by role."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from floatscope.recipes import Recipe

WIDTH = 80
HELP = """Show recipes: the list of all, or the table of those that are named, role by role.

A recipe of your own is a TOML file. It may begin with one of the list and say what it changes:

\b
    base = "mxfp8"
    [operands]
    gradient = "mxfp8-e5m2"
    [stored]
    weights = "bf16"
    update = "stochastic"
"""
Key = tuple[str, str]


@click.command(help=HELP, short_help="Show recipes: what is stored, multiplied and scaled.")
@click.argument("names", nargs=-1, help="Recipes, or TOML files of your own; all, if none.")
@click.option("--diff", is_flag=True, help="Only where the named ones differ.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def recipes(names: tuple[str, ...], diff: bool, as_json: bool) -> None:
    """See `HELP`."""
    from floatscope.errors import RecipeError
    from floatscope.recipes import CATALOGUE
    from floatscope.recipes.plain import recipe_given

    chosen = [recipe_given(name) for name in names] or [*CATALOGUE.values()]
    if diff and len(names) < 2:
        raise RecipeError("--diff compares two or more recipes; name them.")
    if as_json:
        from floatscope.cli.plain import print_json

        print_json([_facts(recipe, _differing(chosen) if diff else None) for recipe in chosen])
    elif diff:
        _print_differing(chosen)
    elif names:
        print("\n\n".join(map(str, chosen)))
    else:
        _print_list(chosen)


def _facts(recipe: Recipe, only: Collection[Key] | None) -> dict[str, Any]:
    """What the table shows, and the fields that a TOML file would have."""
    table = [
        {"part": part, "role": role, "format": said}
        for part, role, said in recipe.table()
        if only is None or (part, role) in only
    ]
    about = {"name": recipe.name, "summary": recipe.summary, "source": recipe.source}
    return {**about, "table": table, "recipe": recipe.to_dict()}


def _print_list(chosen: Sequence[Recipe]) -> None:
    indent = max(len(recipe.name) for recipe in chosen) + 2
    for recipe in chosen:
        print(_wrapped(recipe.name.ljust(indent), recipe.summary))
    print("\nOne, role by role: floatscope recipes NAME; one of your own: FILE.toml.")


def _differing(chosen: Sequence[Recipe]) -> dict[Key, list[str]]:
    """What each recipe has, "–" for a row that it lacks, in the rows that are not all the same."""
    tables = [{(part, role): said for part, role, said in recipe.table()} for recipe in chosen]
    keys = dict.fromkeys(key for table in tables for key in table)
    found = {key: [table.get(key, "–") for table in tables] for key in keys}
    return {key: said for key, said in found.items() if len({*said}) > 1}


def _print_differing(chosen: Sequence[Recipe]) -> None:
    indent = max(len(recipe.name) for recipe in chosen) + 4
    found = _differing(chosen)
    for (part, role), every in found.items():
        print(f"{part}, {role}")
        for recipe, said in zip(chosen, every, strict=True):
            print(_wrapped(f"  {recipe.name}".ljust(indent), said))
    if not found:
        print("They do not differ.")


def _wrapped(start: str, text: str) -> str:
    after = " " * len(start)
    return textwrap.fill(text, WIDTH, initial_indent=start, subsequent_indent=after)
