"""The command line: `floatscope VERB`, one short file a verb."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from floatscope.cli import bits, formats, study, text
from floatscope.errors import FloatscopeError

app = typer.Typer(
    name="floatscope",
    help=(
        "A laboratory bench for the floating point of neural-network training.\n\n"
        "Start with: floatscope study run\n\n"
        "It trains one small GPT in four precisions, changing nothing else, and reports what "
        "happened."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(formats.formats)
app.command()(bits.bits)
app.add_typer(study.app)
app.add_typer(text.app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"floatscope {version('floatscope')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point. Deliberate errors become one message and exit status 1."""
    try:
        app()
    except FloatscopeError as error:
        _fail(str(error))
    except OSError as error:  # standard output is full or gone
        _fail(f"the output could not be written: {error.strerror or error}.")


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(1)  # past the interpreter's own attempt to flush what cannot be written


if __name__ == "__main__":
    main()
