"""A study's summary as a table for the terminal."""

from __future__ import annotations

import math

from rich.console import Group
from rich.table import Table
from rich.text import Text

from floatscope.lab.study.summary import SIGMAS, Arm, Floor, Summary


def study_table(summary: Summary) -> Group:
    """The table, its noise floors in words, and what must be known to read it."""
    title = f"study {summary.name}: {summary.num_finished} of {summary.num_planned} runs finished"
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    table.add_column("recipe")
    for header in (
        "validation loss\nnats/token",
        f"minus {summary.baseline}\npaired by seed",
        "beyond seed\nspread?",
        "beyond\nrerun floor?",
        "skipped\nsteps",
        "gradients\nexactly 0",
        "of absent\ntokens' rows",
        "peak\nRSS",
        "tokens/s\nhere",
    ):
        table.add_column(header, justify="right")
    for arm in summary.arms:
        table.add_row(*_row(arm, is_baseline=arm.recipe == summary.baseline))
    lines = [_floor_line(summary.seed_spread), _floor_line(summary.rerun_floor)]
    lines.append(
        f"A difference is beyond a floor when it exceeds {SIGMAS:g} standard deviations of one run."
    )
    if any("emulated" in arm.backend for arm in summary.arms):
        lines.append(
            "* 16-bit products emulated: the numbers are those of the format, the speed says nothing "
            "about a device with 16-bit units."
        )
    lines += [f"note: {remark}" for remark in summary.remarks]
    return Group(table, *(Text(line) for line in lines))


def _row(arm: Arm, *, is_baseline: bool) -> list[str]:
    loss = _number(arm.validation_loss, ".4f")
    if arm.num_diverged:
        loss = f"{loss} ({arm.num_diverged} of {arm.num_runs} diverged)"
    emulated = "emulated" in arm.backend
    return [
        arm.recipe + ("*" if emulated else ""),
        loss,
        "" if is_baseline else _number(arm.difference, "+.4f"),
        "" if is_baseline else _beyond(arm.hidden_by_seed_spread),
        "" if is_baseline else _beyond(arm.hidden_by_rerun_floor),
        f"{arm.skipped_steps:g}" if arm.skipped_steps == int(arm.skipped_steps) else f"{arm.skipped_steps:.1f}",
        _percent(arm.zero_fraction),
        _percent(arm.zero_fraction_absent_rows),
        f"{arm.peak_rss_bytes / 2**20:,.0f} MiB",
        f"{arm.tokens_per_second:,.0f}" + ("*" if emulated else ""),
    ]


def _beyond(hidden: bool | None) -> str:
    return "?" if hidden is None else "no" if hidden else "yes"


def _floor_line(floor: Floor) -> str:
    what = {
        "seed spread": "fp32 over seeds",
        "rerun floor": "one seed in fp32, every initial weight moved by at most one ulp",
    }[floor.name]
    if math.isnan(floor.standard_deviation):
        return f"{floor.name} ({what}): not measured, it needs two runs."
    return (
        f"{floor.name} ({what}): standard deviation {floor.standard_deviation:.4f}, range "
        f"{floor.spread:.4f}, n = {len(floor.losses)}"
    )


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)


def _percent(value: float) -> str:
    if math.isnan(value):
        return "–"
    return "0" if value == 0 else f"{value:.2%}" if value >= 1e-4 else f"{value:.1e}"
