"""From what the command line was given to a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from floatscope.errors import StudyError, unknown
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.presets import PRESETS
from floatscope.lab.study.toml import read_study, validated
from floatscope.recipes import recipe


def choose(
    study: str,
    *,
    text: str | None = None,
    recipes: Sequence[str] | None = None,
    seeds: Sequence[str] | None = None,
) -> StudyPlan:
    """The preset or study file called `study`, with what was given in its place.

    Raises:
        StudyError: no such preset or file, or a seed that is no whole number.
        RecipeError: an unknown recipe.
    """
    if study in PRESETS:
        plan = PRESETS[study]
    elif study.endswith(".toml") or Path(study).is_file():
        plan = read_study(Path(study))
    else:
        raise StudyError(unknown("study", study, [*PRESETS, "FILE.toml"]))
    values = asdict(plan)
    if text is not None:
        values["text"] = text
    if recipes is not None:
        values["recipes"] = [recipe(name).name for name in recipes]
    if seeds is not None:
        values["seeds"] = [_seed(seed) for seed in seeds]
    return validated(values)


def _seed(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise StudyError(f"--seeds: {value!r} is no whole number.") from None
