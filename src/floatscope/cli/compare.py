"""`floatscope compare`: one gradient under several recipes, each against fp64."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

ALL = "all"


@click.command()
@click.argument("model", default="quick")
@click.option("--recipes", "--recipe", "recipes",
              help="Recipes, recipe files (TOML) or recipes of a study's own, separated by commas; "
              "fp32 is always compared. "
              "Without it, tf32, bf16-mixed, fp16-mixed, fp8-current, mxfp8, mxfp6, mxfp4 and "
              "nvfp4.")  # fmt: skip
@click.option("--batch", type=int, help="Sequences or images in the batch.")
@click.option("--seed", type=int,
              help="Of initialization, batch, dropout and stochastic rounding.")  # fmt: skip
@click.option(
    "--scale", type=float, help="Loss scale of recipes that have one, in place of their own."
)
@click.option("--text", help="The text of a run or study, if not the built-in world.")
@click.option("--layers", default="1",
              help="Parameters to show a recipe, the worst first; or all.")  # fmt: skip
@click.option("--out", type=Path, help="A folder to write compare.json to.")
@click.option(
    "--backend", default="auto", help="Who computes 16-bit products: auto, native or emulated."
)
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON.")
def compare(
    model: str,
    recipes: str | None,
    batch: int | None,
    seed: int | None,
    scale: float | None,
    text: str | None,
    layers: str,
    out: Path | None,
    backend: str,
    as_json: bool,
) -> None:
    """Compare the gradients of recipes with fp64: same weights, same batch, in seconds.

    MODEL is a preset (quick, novel), a study file, the folder of a run or a study, a model of yours
    (package.module:function or file.py:function), or a Hugging Face config.json. A function takes
    nothing and returns (model, loss_of) or (model, batch); a batch is what the model is called
    with, and the model then returns its loss.
    """
    from floatscope.cli.compare_table import compare_table
    from floatscope.cli.console import errors, interruptible, output, print_json
    from floatscope.files import check_writable
    from floatscope.lab.compare.keep import keep
    from floatscope.lab.compare.run import RECIPES, checked, compare_subject
    from floatscope.lab.compare.subject import recipes_called, subject_called
    from floatscope.lab.study.progress import Display

    shown = _layers(layers)
    given = RECIPES if recipes is None else recipes_called(model, _listed(recipes))
    chosen = checked(given, scale, backend)
    if out is not None:
        check_writable(out)
    with (
        interruptible("interrupted; nothing was written"),
        redirect_stdout(sys.stderr),  # what the user's own code prints
        Display(None if as_json else errors) as display,
    ):
        with display.task("making the model"):
            subject = subject_called(model, text=text, batch_size=batch, seed=seed)
        found = compare_subject(
            subject, chosen, scale=scale, seed=seed or 0, backend=backend, announce=display.task
        )
    if as_json:
        print_json(found)
    else:
        output.print(compare_table(found, shown), width=max(80, output.width))
    if out is not None:
        errors.print(f"record in {keep(found, out)}", highlight=False)


def _listed(recipes: str) -> list[str]:
    return [name.strip() for name in recipes.split(",") if name.strip()]


def _layers(given: str) -> int | None:
    from floatscope.errors import StudyError

    if given == ALL:
        return None
    if not given.isdecimal():
        raise StudyError(f"--layers {given}: name how many, such as 3, or {ALL}.")
    return int(given)
