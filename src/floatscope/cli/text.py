"""`floatscope text`: texts to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="text", help="Get a text to train on.", no_args_is_help=True)


@app.command()
def novel(
    out: Annotated[Path, typer.Option(help="Where to write it.")] = Path("sanguo.txt"),
    url: Annotated[
        str | None, typer.Option(help="Another address of the same file (a mirror).")
    ] = None,
) -> None:
    """Download the 120-chapter Romance of the Three Kingdoms (Project Gutenberg 23950) and clean it."""
    from floatscope.cli.console import errors, output
    from floatscope.lab.text.novel import GUTENBERG_URL, fetch_novel

    with errors.status("downloading"):
        fetch_novel(out, url or GUTENBERG_URL)
    output.print(f"{out}: checked and cleaned")


@app.command()
def world(
    out: Annotated[Path | None, typer.Option(help="Where to write it; standard output if absent.")] = None,
    validation: Annotated[bool, typer.Option(help="The validation text instead.")] = False,
) -> None:
    """Print the built-in world that studies train on when no text is given."""
    from floatscope.files import write_text_atomically
    from floatscope.lab.text.world import build_world

    built = build_world()
    content = built.val_text() if validation else built.train_text()
    if out is None:
        print(content, end="")
    else:
        write_text_atomically(out, content)
