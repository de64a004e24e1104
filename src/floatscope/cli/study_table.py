"""A study's summary as a table for the terminal, 80 columns wide."""

from __future__ import annotations

import math

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from floatscope.cli.study_verdict import verdicts
from floatscope.errors import StudyError
from floatscope.lab.statistics import noise_floor
from floatscope.lab.study.summary import SIGMAS, Arm, Floor, Summary

_COLUMNS = (
    "val loss\nnats/tok",
    "minus\nfp32",
    "beyond\nfloor",
    "skipped\nsteps",
    "exact-0\ngrads",
    "RSS\nMiB",
    "tokens\nper s",
)
WORTH_SAYING = 1e-4  # a share of gradients

_FLOORS = {
    "seed spread": "fp32 over seeds",
    "rerun floor": "one fp32 seed, initial weights moved by at most an ulp",
}


def study_table(summary: Summary) -> Group:
    """The table, its noise floors in words, what must be known to read it, and verdicts."""
    table = Table(
        title=_title(summary),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    table.add_column("recipe", no_wrap=True, vertical="bottom")
    for header in _COLUMNS:
        table.add_column(header, justify="right", no_wrap=True, vertical="bottom")
    for arm in summary.arms:
        table.add_row(*_row(arm, is_baseline=arm.recipe == summary.baseline))
    lines = (Text(line) for line in _lines(summary))
    return Group(table, *lines, *verdicts(summary.judgement))


def _title(summary: Summary) -> str:
    return f"study {summary.name}: {summary.num_finished} of {summary.num_planned} runs finished"


def _row(arm: Arm, *, is_baseline: bool) -> list[str]:
    mark = "*" if "emulated" in arm.backend else ""
    return [
        arm.recipe + mark,
        _number(arm.validation_loss, ".4f"),
        "" if is_baseline else _difference(arm.difference),
        "" if is_baseline else _beyond(arm),
        _number(arm.skipped_steps, ".0f" if arm.skipped_steps % 1 == 0 else ".1f"),
        _share(arm.zero_fraction),
        f"{arm.peak_rss_bytes / 2**20:.0f}",
        f"{arm.tokens_per_second:.0f}{mark}",
    ]


def _beyond(arm: Arm) -> str:
    """Which floors the difference exceeds; "?" if another could not be measured."""
    named = {"seed": arm.hidden_by_seed_spread, "rerun": arm.hidden_by_rerun_floor}
    for verdict, hidden in (("both", False), ("neither", True), ("?", None)):
        if set(named.values()) == {hidden}:
            return verdict
    beyond = [name for name, hidden in named.items() if hidden is False]
    return ", ".join([*beyond, "?"] if None in named.values() else beyond)


def _lines(summary: Summary) -> list[str]:
    lines = [_floor_line(summary.seed_spread), _floor_line(summary.rerun_floor)]
    lines.append(
        "Differences are paired by seed, then averaged over seeds. One lies beyond a floor when it "
        f'exceeds {SIGMAS:g} standard deviations of a single run; "neither" cannot be told from '
        "zero."
    )
    for arm in summary.arms:
        if arm.zero_fraction_absent_rows >= WORTH_SAYING:
            lines.append(
                f"{arm.recipe}: exactly zero are {_share(arm.zero_fraction_absent_rows)} of the "
                f"gradients in embedding rows of tokens absent from the batch, "
                f"{_share(arm.zero_fraction_elsewhere)} elsewhere."
            )
        if arm.stored is not None:
            lines.append(
                f"{arm.recipe}: of its updates {_share(arm.stored.lost_first)} left no trace in "
                f"what is stored over the first tenth of the steps, {_share(arm.stored.lost_last)} "
                f"over the last; descent quality {arm.stored.quality_first:.3f}, then "
                f"{arm.stored.quality_last:.3f}."
            )
        if arm.num_diverged:
            lines.append(
                f"{arm.recipe}: {arm.num_diverged} of {arm.num_runs} runs diverged; they enter no "
                "mean."
            )
    if any("emulated" in arm.backend for arm in summary.arms):
        lines.append(
            "* 16-bit products emulated: the numbers are the format's, the speed says nothing "
            "about a device with 16-bit units."
        )
    return lines + [f"note: {remark}" for remark in summary.remarks]


def _floor_line(floor: Floor) -> str:
    if math.isnan(floor.standard_deviation):
        return f"{floor.name} ({_FLOORS[floor.name]}): not measured, it needs two runs."
    return (
        f"{floor.name} ({_FLOORS[floor.name]}): standard deviation "
        f"{floor.standard_deviation:.2g}{_limits(floor)}, range {floor.spread:.2g}, n = "
        f"{len(floor.losses)}."
    )


def _limits(floor: Floor) -> str:
    """95 % limits of the standard deviation, where there is a spread to judge by."""
    try:
        limits = noise_floor(floor.losses).standard_deviation_limits
    except StudyError:
        return ""
    return f" (95 %: {limits.low:.2g} to {limits.high:.2g})"


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)


def _difference(value: float) -> str:
    return _number(value, "+.4f" if abs(value) >= 5e-5 or value == 0 else "+.0e")


def _share(value: float) -> str:
    if math.isnan(value):
        return "–"
    return "0" if value == 0 else f"{value:.2%}" if value >= 5e-5 else "< 0.01%"
