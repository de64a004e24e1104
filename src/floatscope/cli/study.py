"""`floatscope study`: run a study, and show what it found."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click


@click.group()
def study() -> None:
    """Train one model under several recipes and compare."""


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@study.command()
@click.argument(
    "study",
    default="quick",
    help="A preset: quick, novel, lowbit or stress; a study file (TOML); or a study's folder, to "
    "go on with it as it was recorded.",
)
@click.option("--text", help="A UTF-8 text to train on; without it, the built-in world.")
@click.option("--recipes", help="Recipes or recipe files (TOML), separated by commas.")
@click.option("--seeds", help="Seeds, separated by commas.")
@click.option(
    "--out", type=Path, help="The study's folder; studies/NAME, or the folder named, if not given."
)
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
    from floatscope.lab.study.choose import choose, is_folder
    from floatscope.lab.study.execute import execute
    from floatscope.lab.study.progress import Display

    if out is not None and not out.name:
        raise StudyError("--out is empty; name the study's folder.")
    plan = choose(study, text=text, recipes=_listed(recipes), seeds=_listed(seeds))
    folder = out or (Path(study) if is_folder(study) else Path("studies") / plan.name)
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
    """Show what a study has found so far, and its verdicts.

    Exit status 3 if the claim that the study stated does not hold for an arm, 4 if it is undecided
    or there is no verdict.
    """
    status = _show(folder, as_json)
    if status:
        raise click.exceptions.Exit(status)


@study.command()
@click.argument("folder", type=Path, help="A study's folder.")
@click.argument("file", type=Path, help="A TOML file with a table [question].")
def ask(folder: Path, file: Path) -> None:
    """State a question that a study was not planned with.

    Where runs are there already, every verdict says that it was stated after them.
    """
    from floatscope.cli.console import output
    from floatscope.files import owned
    from floatscope.lab.study.folder import open_study
    from floatscope.lab.study.toml import read_question

    question = read_question(file)
    open_study(folder)
    with owned(folder, "the study in"):
        asked = open_study(folder).ask(question)
    runs = asked.num_finished()
    when = f"after {runs} of its runs had ended" if runs else "before its runs"
    output.print(f"{folder}: asked on {asked.asked}, {when}", highlight=False)


@study.command()
@click.argument("folder", type=Path, help="A study's folder.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", help="Language of the text.")
@json_option
@click.option("--out", type=Path, help="A folder for decision.json and its text; often FOLDER.")
def decide(folder: Path, lang: Literal["en", "zh"], as_json: bool, out: Path | None) -> None:
    """Answer the course document's three questions from a study's records.

    Which precision and why, why fp16 needs loss scaling, and whether the memory account adds up;
    then its acceptance criteria. Each statement names the records it rests on. Exit status 3 if a
    criterion does not hold, 4 if one was not measured or the choice is provisional.
    """
    from floatscope.cli.console import output, print_json
    from floatscope.errors import StudyError
    from floatscope.lab.decision.decide import decide as decide_study
    from floatscope.lab.decision.decide import status
    from floatscope.lab.decision.keep import keep
    from floatscope.lab.decision.markdown import markdown
    from floatscope.lab.study.folder import open_study

    if out is not None and not out.name:
        raise StudyError("--out is empty; name a folder for the record.")
    decision = decide_study(open_study(folder))
    if out is not None:
        keep(out, decision)
    if as_json:
        print_json(decision)
    else:
        output.print(markdown(decision, lang), width=max(80, output.width), markup=False)
    if status(decision):
        raise click.exceptions.Exit(status(decision))


def _show(folder: Path, as_json: bool) -> int:
    """Show a study; returns the exit status that its verdicts mean."""
    from floatscope.cli.console import output, print_json
    from floatscope.cli.stress_table import stress_table
    from floatscope.cli.study_table import study_table
    from floatscope.lab.study.folder import open_study
    from floatscope.lab.study.stress_summary import summarize_stress
    from floatscope.lab.study.summary import summarize

    opened = open_study(folder)
    if opened.plan.stress is not None:
        found, status = summarize_stress(opened), 0
        shown = stress_table(found)
    else:
        found = summarize(opened)
        status, shown = found.judgement.status, study_table(found)
    if as_json:
        print_json(found)
    else:
        output.print(shown, width=max(80, output.width))
    return status


def _listed(value: str | None) -> list[str] | None:
    return None if value is None else [part.strip() for part in value.split(",")]
