"""`floatscope lecture`: five demonstrations of 16-bit floating point, measured live."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from floatscope.lab.lecture.telling.words import Language

NUMBERS = ("1", "2", "3", "4", "5")


@click.command(short_help="Five demonstrations of 16-bit floating point, measured live.")
@click.argument("which", nargs=-1, type=click.Choice([*NUMBERS, "all"]))
@click.option("--more", is_flag=True, help="Train the further arms of demonstration 5 too.")
@click.option("--formats", help="Formats of demonstration 1, separated by commas.")
@click.option(
    "--lang", type=click.Choice(["zh", "en"]), default=None, show_default="the system's",
    help="Chinese or English.",
)  # fmt: skip
@click.option("--out", type=Path, help="Keep the records in this folder, as lecture/demo-N.json.")
@click.option("--figures", type=Path, help="Draw the figures into this folder, SVG and PNG.")
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON.")
def lecture(
    which: tuple[str, ...],
    more: bool,
    formats: str | None,
    lang: str | None,
    out: Path | None,
    figures: Path | None,
    as_json: bool,
) -> None:
    """Show what 16 bits do to training: formats, sums, gradients, loss scaling, master weights.

    Name demonstrations by number, or all; without one, they are listed. Every number is computed
    when the command runs. Demonstrations 3 to 5 need the base model, a character GPT that is
    trained the first time (two minutes) and then kept in the user's cache folder.
    """
    from floatscope.cli.console import interruptible
    from floatscope.cli.lecture_show import show_list

    language = language_of(lang, os.environ)
    numbers = [int(n) for n in (NUMBERS if "all" in which else sorted(set(which)))]
    _check(numbers, more, formats)
    if not numbers:
        show_list(language, as_json)
        return
    with interruptible("interrupted; finished demonstrations are kept"):
        _run(numbers, more, formats, language, out, figures, as_json)


def language_of(asked: str | None, environment: Mapping[str, str]) -> Language:
    """The language asked for, or that of the locale's environment variables."""
    locale = (environment.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    chosen = asked or next(filter(None, locale), "en")
    return "zh" if chosen.lower().startswith("zh") else "en"


def _check(numbers: list[int], more: bool, formats: str | None) -> None:
    if more and 5 not in numbers:
        raise click.UsageError("--more is for demonstration 5; name 5 or all.")
    if formats is not None and 1 not in numbers:
        raise click.UsageError("--formats is for demonstration 1; name 1 or all.")


def _run(
    numbers: list[int],
    more: bool,
    formats: str | None,
    language: Language,
    out: Path | None,
    figures: Path | None,
    as_json: bool,
) -> None:
    import time

    from floatscope.cli.console import errors
    from floatscope.cli.lecture_progress import watch_on
    from floatscope.files import check_writable
    from floatscope.lab.lecture.run import Lecture

    shared = Lecture(
        formats=[name.strip() for name in (formats or "").split(",") if name.strip()],
        more=more,
        watch=watch_on(errors),
        note=errors.print,
    )
    for folder in filter(None, (out, figures)):
        check_writable(folder)
    found = []
    for number in numbers:
        shared.prepare(number)
        started = time.perf_counter()
        record = shared.demonstration(number)
        seconds = time.perf_counter() - started
        found.append(_hand_over(number, record, seconds, language, out, figures, as_json))
    if as_json:
        from floatscope.cli.plain import print_json

        print_json(found)


def _hand_over(
    number: int,
    record: Any,
    seconds: float,
    language: Language,
    out: Path | None,
    figures: Path | None,
    as_json: bool,
) -> dict[str, Any]:
    """Show a record and keep what is asked for; its JSON where that is asked for."""
    from floatscope.cli.console import errors

    if not as_json:
        from floatscope.cli.lecture_show import show

        show(number, record, seconds, language)
    if figures is not None:
        from floatscope.cli.lecture_files import draw

        errors.print(f"figure in {draw(number, record, figures, language)}", highlight=False)
    if out is None and not as_json:
        return {}
    from floatscope.lab.lecture import keep
    from floatscope.lab.run.environment import environment

    file = keep.DemoFile(
        demonstration=number,
        environment=environment("emulated" if number in (3, 4) else "native"),
        seconds=seconds,
        record=record,
    )
    if out is not None:
        errors.print(f"record in {keep.write(out, file)}", highlight=False)
    return keep.values_of(file)
