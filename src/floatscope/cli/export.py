"""`floatscope export`: a study's records as one JSON file."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="DIR", type=Path)
@click.option("-o", "--out", type=Path, help="The file; DIR/export.json if not given.")
def export(folder: Path, out: Path | None) -> None:
    """Write the records of the study in DIR as one documented JSON file.

    For platforms that draw a page of their own. It has the plan, every run's curves and events,
    machines and versions, and the probe, memory, comparison, lecture and decision records, or null
    where something has not been measured; its JSON Schema lies beside it.
    """
    from floatscope.cli.console import errors, interruptible, output
    from floatscope.lab.study.progress import Display
    from floatscope.report.evidence import gather
    from floatscope.report.export import write

    path = out or folder / "export.json"
    with (
        interruptible("interrupted; nothing was written"),
        Display(errors) as display,
        display.task("reading the records"),
    ):
        schema = write(gather(folder), path)
    output.print(f"{path}\n{schema}", highlight=False, soft_wrap=True)
