"""Read a study file.

A study file is TOML. Its keys are the fields of `StudyPlan`, with tables `[model]`, `[train]`,
`[question]` and `[stress]`; `preset = "quick"`, `"novel"` and so on says where unnamed fields come
from (novel, if absent). Of `recipes`, each is a name, the TOML file of a recipe (its path starts
from the study file's folder), or a table with the keys of such a file. Instead of `recipes`,
`train.precision` ("fp32", "bf16" or "fp16", or a list of them) and `train.loss_scaling` may name
them.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from floatscope.errors import FloatscopeError, StudyError, unknown
from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.run.plan import TrainConfig
from floatscope.lab.study.own import OF_A_RECIPE, named
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.presets import PRESETS
from floatscope.lab.study.question import Question
from floatscope.lab.study.stress import Stress
from floatscope.recipes import recipe_for

_T = TypeVar("_T")
_TABLES: dict[str, type] = {
    "model": GPTConfig, "train": TrainConfig, "question": Question, "stress": Stress,
}  # fmt: skip
_MADE = ("own_recipes",)
"""Fields that a study file has in other words."""
_ALSO = {"": ("preset",), "train": ("precision", "loss_scaling")}


def read_study(path: Path) -> StudyPlan:
    """The plan in a study file.

    Raises:
        StudyError: the file is missing, is not TOML, or has an unknown key or an unfit value.
        RecipeError: it names an unknown recipe, or a file or table that describes none.
    """
    content = _read(path)
    try:
        return plan_from(content, name=path.stem, folder=path.parent)
    except FloatscopeError as error:
        raise type(error)(f"{path}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise StudyError(f"there is no study file {path}.") from None
    except OSError as error:
        raise StudyError(f"the study file {path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StudyError(f"{path} is not TOML: {error}.") from None


def read_question(path: Path) -> Question:
    """The table [question] of a TOML file; what else the file holds is ignored.

    Raises:
        StudyError: the file cannot be read, has no such table, or a key or value is wrong.
    """
    content = _read(path).get("question")
    if not isinstance(content, dict):
        raise StudyError(f"{path} has no table [question].")
    try:
        _check_keys({"question": content})
        return _validated(_QUESTION, {"question": content})["question"]
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from None


def plan_from(content: Mapping[str, Any], name: str, folder: Path = Path()) -> StudyPlan:
    """The plan that the keys of a study file describe; `name` unless they give one.

    Args:
        content: the keys.
        name: of the study.
        folder: from which the paths of recipe files start.

    Raises:
        StudyError, RecipeError: as `read_study`.
    """
    content = {k: dict(v) if isinstance(v, Mapping) else v for k, v in content.items()}
    _check_keys(content)
    base = _preset(content.pop("preset", "novel"))
    _name_recipes(content)
    merged: dict[str, Any] = {**asdict(base), "name": name, **content}
    if "recipes" in content:
        merged["recipes"], own = named(content["recipes"], beside=folder)
        merged["own_recipes"] = [asdict(one) for one in own]
    for table in _TABLES:
        given = content.get(table, {})
        if not isinstance(given, dict):
            raise StudyError(f"{table} must be a table: write [{table}] on a line of its own.")
        of_base = getattr(base, table)
        merged[table] = {**({} if of_base is None else asdict(of_base)), **given} or None
    if "stress" in content and "question" not in content:
        merged["question"] = None  # the preset's
    return validated(merged)


def validated(values: Mapping[str, Any]) -> StudyPlan:
    """A plan from plain values.

    Raises:
        StudyError: a value of the wrong type, or one that the plan refuses.
    """
    return _validated(_PLAN, values)


def _validated(adapter: TypeAdapter[_T], values: Mapping[str, Any]) -> _T:
    try:
        # As JSON and strictly: lists become tuples, and nothing else becomes something else.
        return adapter.validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        problems = "; ".join(_problem(dict(e)) for e in error.errors())
        raise StudyError(f"{problems}.") from None


_PLAN = TypeAdapter(StudyPlan)
_QUESTION: TypeAdapter[dict[str, Question]] = TypeAdapter(dict[str, Question])


def _preset(name: Any) -> StudyPlan:
    if name not in PRESETS:
        raise StudyError(unknown("preset", str(name), PRESETS))
    return PRESETS[name]


def _check_keys(content: Mapping[str, Any]) -> None:
    if recipe_keys := [key for key in content if key in OF_A_RECIPE]:
        raise StudyError(
            f"{recipe_keys[0]} is a recipe's key, not a study's. A study takes a recipe file among "
            'its recipes: recipes = ["fp32", "FILE.toml"], or --recipes fp32,FILE.toml.'
        )
    levels = [("", StudyPlan, content)]
    levels += [
        (t, cls, content[t]) for t, cls in _TABLES.items() if isinstance(content.get(t), dict)
    ]
    for table, cls, given in levels:
        known = [f.name for f in fields(cls) if f.name not in _MADE] + list(_ALSO.get(table, ()))
        for key in given:
            if key not in known:
                prefix = f"{table}." if table else ""
                raise StudyError(unknown("key", prefix + key, [prefix + k for k in known]))


def _name_recipes(content: dict[str, Any]) -> None:
    train = content.get("train")
    if not isinstance(train, dict) or not {"precision", "loss_scaling"} & set(train):
        return
    precision, scaling = train.pop("precision", None), train.pop("loss_scaling", None)
    if "recipes" in content:
        raise StudyError("name recipes or train.precision, not both.")
    if precision is None:
        raise StudyError("train.loss_scaling needs train.precision beside it.")
    if scaling is not None and not isinstance(scaling, bool):
        raise StudyError("train.loss_scaling must be true or false.")
    several = precision if isinstance(precision, list) else [precision]
    content["recipes"] = [recipe_for(str(one), scaling).name for one in several]


def _problem(error: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] == "tuple_type":
        message = "must be a list, such as [1, 2]"
    if error["type"] == "value_error" or not where:
        return message
    return f"{where} = {error['input']!r}: {message[0].lower()}{message[1:]}"
