"""`floatscope report`: one page that shows what a study found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from floatscope.report.shell import Page

LANGUAGES = click.Choice(["en", "zh"])


@click.command()
@click.argument("folder", metavar="DIR", type=Path)
@click.option("-o", "--out", type=Path, help="The page; DIR/report.html if not given.")
@click.option("--lang", default="en", type=LANGUAGES, help="Language shown first.")
@click.option("--static", "is_static", is_flag=True, help="Leave the scripts out: a small page.")
@click.option("--watch", is_flag=True, help="Build again whenever the study's records change.")
@click.option("--figures", type=Path, help="Also write each figure as SVG and PNG to this folder.")
def report(
    folder: Path, out: Path | None, lang: str, is_static: bool, watch: bool, figures: Path | None
) -> None:
    """Draw the records of the study in DIR as one page.

    The page is one HTML file that opens from disk without a network, in English and Chinese. With
    the study's runs it shows the probe, memory, comparison, lecture and decision records that lie
    beside them; what has not been measured says so, with the command that would measure it.
    """
    from floatscope.cli.console import interruptible
    from floatscope.report.assemble import default_path
    from floatscope.report.shell import Page
    from floatscope.report.watch import changes

    page = Page(language=lang, is_static=is_static)
    path = out or default_path(folder)
    with interruptible("stopped watching" if watch else "interrupted; nothing was written"):
        # Before the first build, which may miss what comes meanwhile.
        seen = changes(folder, path) if watch else None
        _build(folder, path, page, figures)
        if seen is not None:
            _watch(seen, lambda: _build(folder, path, page, figures))


def _build(folder: Path, path: Path, page: Page, figures: Path | None) -> None:
    from floatscope.cli.console import errors, output
    from floatscope.files import write_text_atomically
    from floatscope.lab.study.progress import Display
    from floatscope.report.assemble import assembled, sections_of
    from floatscope.report.evidence import gather
    from floatscope.report.papers import write_figures

    with Display(errors) as display:
        with display.task("reading the records"):
            evidence = gather(folder)
        with display.task("drawing"):
            sections = sections_of(evidence)
        with display.task("writing"):
            text = assembled(evidence, sections, page)
            write_text_atomically(path, text)
            written = write_figures(sections, figures) if figures is not None else 0
    size = f"{len(text.encode()) / 1e6:.2f} MB"
    output.print(f"{path} ({size})", highlight=False, soft_wrap=True)
    if figures is not None:
        output.print(f"{figures} ({written} figures)", highlight=False, soft_wrap=True)


def _watch(seen: Iterable[None], build: Callable[[], None]) -> None:
    from floatscope.cli.console import errors
    from floatscope.errors import FloatscopeError

    errors.print("watching for new records; Ctrl-C ends it", highlight=False)
    for _ in seen:
        try:
            build()
        except FloatscopeError as error:  # a record that is being written; the next change is near
            errors.print(str(error), highlight=False)
