"""`floatscope text`: texts to train on."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def text() -> None:
    """Get a text to train on."""


@text.command()
@click.option("--out", type=Path, default="sanguo.txt", help="Where to write it.")
@click.option("--url", help="Another address of the same file (a mirror).")
def novel(out: Path, url: str | None) -> None:
    """Download the Romance of the Three Kingdoms and clean it.

    The 120-chapter novel in Chinese, Project Gutenberg eBook 23950, 604 193 characters.
    """
    from floatscope.cli.console import errors, interruptible, output
    from floatscope.lab.text.novel import GUTENBERG_URL, fetch_novel

    with interruptible("interrupted; nothing was written"), errors.status("downloading") as status:
        same = fetch_novel(
            out,
            url or GUTENBERG_URL,
            progress=lambda received: status.update(f"downloading: {received / 1e6:.1f} MB"),
        )
    output.print(f"{out}: downloaded, checked and cleaned")
    if not same:
        errors.print(
            "note: the cleaned text is not byte for byte the one of the published novel study, so "
            "losses cannot be compared with its table."
        )


@text.command()
@click.option("--out", type=Path, help="Where to write it; standard output if absent.")
@click.option("--validation/--no-validation", help="The validation text instead.")
def world(out: Path | None, validation: bool) -> None:
    """Print the built-in world that studies train on when no text is given."""
    from floatscope.files import write_text_atomically
    from floatscope.lab.text.world import build_world

    built = build_world()
    content = built.val_text() if validation else built.train_text()
    if out is None:
        print(content, end="")
    else:
        write_text_atomically(out, content)
