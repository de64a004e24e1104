"""`floatscope study`: run a study, and show what it found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="study", help="Train one model under several recipes and compare.", no_args_is_help=True
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command()
def run(
    study: Annotated[
        str, typer.Argument(help="A preset, quick or novel, or a study file (TOML).")
    ] = "quick",
    text: Annotated[
        str | None,
        typer.Option(help="A UTF-8 text to train on; without it, the built-in world."),
    ] = None,
    recipes: Annotated[
        str | None, typer.Option(help="Recipes to compare, separated by commas.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The study's folder; studies/NAME if not given.")
    ] = None,
    backend: Annotated[
        str,
        typer.Option(help="Who computes 16-bit products: auto, native or emulated."),
    ] = "auto",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; as many as fit if not given.")
    ] = None,
    reuse: Annotated[
        Path | None, typer.Option(help="Take over finished runs from this study's folder.")
    ] = None,
    json: Json = False,
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
        Display(None if json else errors) as display,
    ):
        execute(plan, folder, backend=backend, jobs=jobs, reuse=reuse, display=display)
    if not json:
        errors.print(f"records in {folder}", highlight=False)
    _show(folder, json)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="A study's folder.")],
    json: Json = False,
) -> None:
    """Show what a study has found so far."""
    _show(folder, json)


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
