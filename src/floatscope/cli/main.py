"""The command line: `floatscope VERB`, one short file a verb.

A start has to be quick. Hence click itself and not typer, which loads pydantic as soon as a verb
runs, and hence verbs that import what they compute with when they run (benchmarks/startup.py).
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import NoReturn

import click

from floatscope.cli.bits import bits
from floatscope.cli.compare import compare
from floatscope.cli.explore import explore
from floatscope.cli.export import export
from floatscope.cli.formats import formats
from floatscope.cli.lecture import lecture
from floatscope.cli.memory import memory
from floatscope.cli.probe import probe
from floatscope.cli.recipes import recipes
from floatscope.cli.report import report
from floatscope.cli.study import study
from floatscope.cli.text import text
from floatscope.errors import FloatscopeError

SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "show_default": True,
    "color": False if os.environ.get("NO_COLOR") else None,
}


@click.group(context_settings=SETTINGS)
@click.version_option(
    package_name="floatscope", message="floatscope %(version)s", help="Print the version."
)
def app() -> None:
    """A laboratory bench for the floating point of neural-network training.

    Start with: floatscope study run

    It trains one small GPT in four precisions, changing nothing else, and reports what happened.
    """


for verb in (
    formats, bits, lecture, study, recipes, probe, compare, memory, report, export, explore, text,
):  # fmt: skip
    app.add_command(verb)


def main() -> NoReturn:
    """Entry point. Deliberate errors become one message and exit status 1."""
    _prepare_output()
    try:
        status = app(prog_name="floatscope", standalone_mode=False)
        sys.stdout.flush()
    except click.Abort:  # Ctrl-C
        status = 130
    except click.ClickException as error:  # wrong usage
        error.show()
        status = error.exit_code
    except FloatscopeError as error:
        _fail(str(error))
    except OSError as error:  # standard output is full or gone
        _fail(f"the output could not be written: {error.strerror or error}.")
    sys.exit(status)


def _prepare_output() -> None:
    """See that there is an output; characters that its encoding does not have are escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        _fail("the output could not be written: standard output is closed.")


def _fail(message: str) -> NoReturn:
    with suppress(OSError):
        if sys.stderr is not None:
            print(f"error: {message}", file=sys.stderr, flush=True)
    with suppress(OSError):
        if sys.stdout is not None:
            sys.stdout.flush()
    os._exit(1)  # past the interpreter's own attempt to flush what cannot be written


if __name__ == "__main__":
    main()
