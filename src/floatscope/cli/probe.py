"""`floatscope probe`: where gradients go in 16 and 8 bits, on paper and in reality."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click


@click.command()
@click.argument(
    "run",
    required=False,
    type=Path,
    help="A finished run's folder, or a study's: its first fp32 run.",
)
@click.option(
    "--model", help="A model of yours: package.module:function or file.py:function (see README)."
)
@click.option("--recipe", "recipes", default="fp16-mixed,bf16-mixed",
              help="Recipes whose products really run, separated by commas.")  # fmt: skip
@click.option("--scales", default="0,8,16,24",
              help="Exponents k of the loss scales 2^k at which they run.")  # fmt: skip
@click.option("--text", help="The text that the run was trained on, if not the built-in world.")
@click.option("--out", type=Path, help="Folder of the records; RUN/probe or probe if not given.")
@click.option(
    "--backend", default="auto", help="Who computes 16-bit products: auto, native or emulated."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def probe(
    run: Path | None,
    model: str | None,
    recipes: str,
    scales: str,
    text: str | None,
    out: Path | None,
    backend: str,
    as_json: bool,
) -> None:
    """Show where gradients lie on the number line, and what 16 and 8 bits make of them.

    One batch is run backward in fp32, whose spectrum says what any format would do at any scale,
    and then really in 16 bits at several scales. Of a run, its initialization and its last weights
    are probed, on its first training batch.
    """
    from floatscope.cli.console import errors, interruptible, output, print_json
    from floatscope.cli.probe_table import probe_table
    from floatscope.errors import StudyError
    from floatscope.files import check_writable
    from floatscope.lab.probe.answers import summary
    from floatscope.lab.probe.keep import keep
    from floatscope.lab.probe.run import probe as probe_subject
    from floatscope.lab.probe.subject import subject_of_factory, subject_of_run
    from floatscope.lab.study.progress import Display

    if (run is None) == (model is None):
        raise StudyError("name a run's folder or a --model, one of the two.")
    exponents = _exponents(scales)
    with (
        interruptible("interrupted; nothing was written"),
        redirect_stdout(sys.stderr),  # what the user's own code prints
        Display(None if as_json else errors) as display,
    ):
        with display.task("reading the run" if run else "making the model"):
            subject = subject_of_run(run, text) if run else subject_of_factory(str(model))
        folder = out or (subject.folder / "probe" if subject.folder else Path("probe"))
        check_writable(folder)
        found = probe_subject(
            subject,
            recipes=[name.strip() for name in recipes.split(",") if name.strip()],
            exponents=exponents,
            backend=backend,
            announce=display.task,
        )
    if as_json:
        print_json(summary(found))
    else:
        output.print(probe_table(found), width=max(80, output.width))
    keep(found, folder)
    errors.print(f"records in {folder}", highlight=False)


def _exponents(scales: str) -> list[int]:
    from floatscope.errors import StudyError
    from floatscope.spectrum.predict import SCALES

    try:
        exponents = sorted({int(part) for part in scales.split(",")})
    except ValueError:
        exponents = []
    if not exponents or exponents[0] not in SCALES or exponents[-1] not in SCALES:
        raise StudyError(
            f"--scales {scales}: name exponents k of scales 2^k, whole numbers from "
            f"{SCALES.start} to {SCALES.stop - 1}, separated by commas."
        )
    return exponents
