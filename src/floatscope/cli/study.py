"""`floatscope study`: run a study, and show what it found."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def study() -> None:
    """Train one model under several recipes and compare."""


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@study.command()
@click.argument(
    "study", default="quick", help="A preset: quick, novel or lowbit; or a study file (TOML)."
)
@click.option("--text", help="A UTF-8 text to train on; without it, the built-in world.")
@click.option("--recipes", help="Recipes to compare, separated by commas.")
@click.option("--seeds", help="Seeds, separated by commas.")
@click.option("--out", type=Path, help="The study's folder; studies/NAME if not given.")
@click.option(
    "--backend", default="auto", help="Who computes 16-bit products: auto, native or emulated."
)
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Runs at a time; as many as fit if not given."
)
@click.option("--reuse", type=Path, help="Take over finished runs from this study's folder.")
@json_option
def run(
    study: str,
    text: str | None,
    recipes: str | None,
    seeds: str | None,
    out: Path | None,
    backend: str,
    jobs: int | None,
    reuse: Path | None,
    as_json: bool,
) -> None:
    """Run a study, or go on with it, and show its table.

    It may be stopped at any time; the same command goes on from the last checkpoints.
    """
    from floatscope.cli.console import errors, interruptible
    from floatscope.errors import StudyError
    from floatscope.lab.study.choose import choose
    from floatscope.lab.study.execute import execute
    from floatscope.lab.study.progress import Display

    if out is not None and not out.name:
        raise StudyError("--out is empty; name the study's folder.")
    plan = choose(study, text=text, recipes=_listed(recipes), seeds=_listed(seeds))
    folder = out if out is not None else Path("studies") / plan.name
    with (
        interruptible("interrupted; the same command goes on from the last checkpoints"),
        Display(None if as_json else errors) as display,
    ):
        execute(plan, folder, backend=backend, jobs=jobs, reuse=reuse, display=display)
    if not as_json:
        errors.print(f"records in {folder}", highlight=False)
    _show(folder, as_json)


@study.command()
@click.argument("folder", type=Path, help="A study's folder.")
@json_option
def show(folder: Path, as_json: bool) -> None:
    """Show what a study has found so far."""
    _show(folder, as_json)


def _show(folder: Path, as_json: bool) -> None:
    from floatscope.cli.console import output, print_json
    from floatscope.cli.study_table import study_table
    from floatscope.lab.study.folder import open_study
    from floatscope.lab.study.summary import summarize

    summary = summarize(open_study(folder))
    if as_json:
        print_json(summary)
    else:
        output.print(study_table(summary), width=max(80, output.width))


def _listed(value: str | None) -> list[str] | None:
    return None if value is None else [part.strip() for part in value.split(",")]
