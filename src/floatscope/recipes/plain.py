"""Recipes from plain values: TOML files, JSON records, dictionaries.

A recipe may begin with another, `base`, and say what it changes:

    base = "mxfp8"                      # of the catalogue; "fp32" if it is not named
    [operands]
    gradient = "mxfp8-e5m2"             # a format alone, or a table of an operand's fields
    activation = {rounding = "nearest-even", rule = "floor"}
    [kept]
    names = ["blocks.0.*"]
    [loss_scaling]
    initial = 1024

Tables are merged with the base's, key by key. An operand that names another format than the base's
starts afresh, and so does a loss scaling of the other kind: `scale` makes it static. "none" takes
away: `operands = "none"`, `loss_scaling = "none"`, `operands.activation_again = "none"`, or
`stored.master = "none"`. A format for all operands: `operands = "mxfp8-e4m3"`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from floatscope.errors import FloatscopeError, RecipeError, unknown
from floatscope.recipes.catalogue import CATALOGUE, recipe
from floatscope.recipes.formats_of import Operand, Operands, Stored
from floatscope.recipes.recipe import Recipe
from floatscope.recipes.scalings import LossScaling, Scaling, StaticScaling

NONE = "none"
_AGAIN = "_again"
_Part = TypeVar("_Part")


def recipe_given(name: str) -> Recipe:
    """The recipe of the catalogue, or in the TOML file, if the name ends so.

    Raises:
        RecipeError: there is none (see `recipe` and `Recipe.from_toml`).
    """
    return recipe_in(Path(name)) if name.endswith(".toml") else recipe(name)


def recipe_in(path: Path) -> Recipe:
    """The recipe in a TOML file (see `Recipe.from_toml`)."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe file {path}.") from None
    except OSError as error:
        raise RecipeError(f"the recipe file {path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecipeError(f"{path} is not TOML: {error}.") from None
    try:
        _check_one(content)
        return recipe_from({"name": path.stem, **content})
    except FloatscopeError as error:
        raise RecipeError(f"{path}: {error}") from None


def _check_one(content: Mapping[str, Any]) -> None:
    """Refuse a file of several recipes, each in a table of its own."""
    known = {"base", *(f.name for f in fields(Recipe))}
    tables = {
        key: part
        for key, value in content.items()
        if key not in known
        for part in (value if isinstance(value, list) else [value])
        if isinstance(part, Mapping)
    }
    if any(known & part.keys() for part in tables.values()):
        raise RecipeError(
            f"a recipe file is one recipe, whose keys stand at its top, and this one has recipes "
            f"in the tables {', '.join(tables)}. Write each into a file of its own, which names it."
        )


def recipe_from(values: Mapping[str, Any]) -> Recipe:
    """The recipe that plain values describe (see `Recipe.from_dict`)."""
    _check_keys(values, ("base", *(f.name for f in fields(Recipe))), "")
    base = _base(values.get("base", "fp32"))
    made = replace(base, **_changes(base, values))
    known = CATALOGUE.get(made.name)
    if known is None or known == made:
        return known or made
    raise RecipeError(
        f"{made.name} is the catalogue's name for another recipe; give yours a name of its own."
    )


def _base(name: Any) -> Recipe:
    if not isinstance(name, str) or name not in CATALOGUE:
        raise RecipeError(unknown("base", str(name), CATALOGUE))
    return CATALOGUE[name]


def _changes(base: Recipe, values: Mapping[str, Any]) -> dict[str, Any]:
    """What the values put in place of the base's fields."""
    if "name" not in values:
        raise RecipeError("a recipe needs a name.")
    own = [key for key in values if key not in ("base", "name", "summary", "source")]
    changes: dict[str, Any] = {
        "summary": f"{base.name} with its own {', '.join(own)}" if own else base.summary,
        "source": f"composed from {base.name}",
    }
    for key in ("name", "products", "summary", "source"):
        if key in values:
            changes[key] = _text(values[key], key)
    if "operands" in values:
        changes["operands"] = _operands(base.operands, values["operands"])
    if "kept" in values:
        changes["kept"] = _merged(base.kept, values["kept"], "kept")
    if "stored" in values:
        changes["stored"] = _stored(base.stored, values["stored"])
    if "loss_scaling" in values:
        changes["loss_scaling"] = _scaling(base.loss_scaling, values["loss_scaling"])
    return changes


def _operands(base: Operands | None, given: Any) -> Operands | None:
    if _is_none(given):
        return None
    if isinstance(given, str):
        operand = _operand(None, given, "operands")
        given = dict.fromkeys(("activation", "weight", "gradient"), operand)
        base = None
    _check_keys(_table(given, "operands"), [f.name for f in fields(Operands)], "operands.")
    merged: dict[str, Any] = {}
    if base is not None:
        merged = {f.name: getattr(base, f.name) for f in fields(Operands)}
    for role, value in given.items():
        if role == "accumulator":
            merged[role] = _text(value, "operands.accumulator")
        elif isinstance(value, Operand):
            merged[role] = value
        else:
            like = merged.get(role) or merged.get(role.removesuffix(_AGAIN))
            merged[role] = _operand(like, value, f"operands.{role}")
    for role in ("activation", "weight", "gradient"):
        if merged.get(role) is None:
            raise RecipeError(
                f'operands.{role} is missing; name its format, or "bf16" for products in bf16.'
            )
    return Operands(**merged)


def _operand(base: Operand | None, given: Any, where: str) -> Operand | None:
    if _is_none(given):
        return None
    if isinstance(given, str):
        given = {"format": given}
    given = _table(given, where)
    if base is None or given.get("format", base.format) != base.format:
        return _made(Operand, given, where)
    return _merged(base, given, where)


def _stored(base: Stored, given: Any) -> Stored:
    given = dict(_table(given, "stored"))
    if given.get("master") == NONE:
        given["master"] = ""
    return _merged(base, given, "stored")


def _scaling(base: Scaling | None, given: Any) -> Scaling | None:
    if _is_none(given):
        return None
    given = _table(given, "loss_scaling")
    static = {f.name for f in fields(StaticScaling)}
    is_static = "scale" in given or (isinstance(base, StaticScaling) and given.keys() <= static)
    kind = StaticScaling if is_static else LossScaling
    if isinstance(base, kind):
        return _merged(base, given, "loss_scaling")
    return _made(kind, given, "loss_scaling")


def _merged(base: _Part, given: Any, where: str) -> _Part:
    """The part with the given fields in place of its own."""
    own = {f.name: getattr(base, f.name) for f in fields(base)}  # type: ignore[arg-type]
    return _made(type(base), {**own, **_table(given, where)}, where)


def _made(kind: type[_Part], given: Mapping[str, Any], where: str) -> _Part:
    """A part of a recipe from plain values, checked strictly: nothing becomes something else."""
    from pydantic import TypeAdapter, ValidationError

    _check_keys(given, [f.name for f in fields(kind)], f"{where}.")  # type: ignore[arg-type]
    try:
        return TypeAdapter(kind).validate_json(json.dumps(given, default=str), strict=True)
    except ValidationError as error:
        problems = "; ".join(_problem(dict(e), where) for e in error.errors())
        raise RecipeError(f"{problems}.") from None
    except FloatscopeError as error:
        raise RecipeError(f"{where}: {error}") from None


def _problem(error: dict[str, Any], where: str) -> str:
    name = ".".join([where, *map(str, error["loc"])])
    if error["type"] == "missing":
        return f"{name} is missing"
    if error["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return unknown(name, str(error["input"]), choices).removesuffix(".")
    message = str(error["msg"])
    return f"{name} = {error['input']!r}: {message[0].lower()}{message[1:]}"


def _check_keys(given: Mapping[str, Any], known: Any, prefix: str) -> None:
    known = list(known)
    for key in given:
        if key not in known:
            raise RecipeError(unknown("key", f"{prefix}{key}", [prefix + k for k in known]))


def _table(given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise RecipeError(f"{where} must be a table, not {given!r}.")
    return given


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise RecipeError(f"{where} must be a string, not {given!r}.")
    return given


def _is_none(given: Any) -> bool:
    return given is None or given == NONE
