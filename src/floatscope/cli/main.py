"""The command line: `floatscope VERB`, one short file a verb."""

from __future__ import annotations

import sys

import typer

from floatscope.cli import formats, study, text
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
app.add_typer(study.app)
app.add_typer(text.app)


@app.callback()
def _root() -> None:
    pass


def main() -> None:
    """Entry point. Deliberate errors become one message and exit status 1."""
    try:
        app()
    except FloatscopeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
