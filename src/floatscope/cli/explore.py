"""`floatscope explore`: the bit explorer and the quantization bench, as a page of their own."""

from __future__ import annotations

from pathlib import Path

import click

from floatscope.cli.report import LANGUAGES


@click.command()
@click.option("-o", "--out", type=Path, help="Write the page there, and do not open it.")
@click.option("--lang", default="en", type=LANGUAGES, help="Language shown first.")
def explore(out: Path | None, lang: str) -> None:
    """Open the bit explorer and the quantization bench in the browser.

    One HTML file that needs no network: click the bits of any format, type a number, paste many.
    """
    from floatscope.cli.console import output
    from floatscope.files import write_text_atomically
    from floatscope.paths import cache_folder
    from floatscope.report.instruments import explorer
    from floatscope.report.shell import Page

    path = out or cache_folder() / "explore.html"
    write_text_atomically(path, explorer(Page(language=lang)))
    output.print(str(path), highlight=False, soft_wrap=True)
    if out is None:
        click.launch(path.resolve().as_uri())
