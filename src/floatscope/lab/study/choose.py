"""From what the command line was given to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from floatscope.errors import StudyError, unknown
from floatscope.lab.study.folder import STUDY, open_study
from floatscope.lab.study.own import named
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.presets import PRESETS
from floatscope.lab.study.toml import read_study, validated


def choose(
    study: str,
    *,
    text: str | None = None,
    recipes: Sequence[str] | None = None,
    seeds: Sequence[str] | None = None,
) -> StudyPlan:
    """The preset, study file or study's folder called `study`, with what was given in its place.

    Args:
        study: a folder stands for the plan that its records hold.
        text: in place of the plan's.
        recipes: likewise; names of the catalogue or of the plan's own, or TOML files.
        seeds: likewise.

    Raises:
        StudyError: no such preset, file or folder, or a seed that is no whole number.
        RecipeError: an unknown recipe, or a file that describes none.
    """
    if study in PRESETS:
        plan = PRESETS[study]
    elif is_folder(study):
        plan = open_study(Path(study)).plan
    elif study.endswith(".toml") or Path(study).is_file():
        plan = read_study(Path(study))
    else:
        raise StudyError(unknown("study", study, [*PRESETS, "FILE.toml", "FOLDER"]))
    values = asdict(plan)
    if text is not None:
        values["text"] = text
    if recipes is not None:
        values["recipes"], own = named(recipes, known=plan.own_recipes)
        values["own_recipes"] = [asdict(one) for one in own]
    if seeds is not None:
        values["seeds"] = [_seed(seed) for seed in seeds]
    return validated(values)


def is_folder(study: str) -> bool:
    """Whether `study` is the folder of one that was begun."""
    return study not in PRESETS and (Path(study) / STUDY).is_file()


def _seed(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise StudyError(f"--seeds: {value!r} is no whole number.") from None
