"""A stress study for the terminal: losses by learning rate, first failures, what announced them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from floatscope.lab.study.stress_summary import FirstFailure, StressRun, StressSummary

_EXITS = {"diverged": "NaN", "loss scale collapsed": "scale"}
_REMEDIES = {
    "none": "no remedy", "qk-norm": "q and k normalized", "z-loss": "z-loss of 1e-4",
    "both": "q and k normalized, z-loss",
}  # fmt: skip


def stress_table(summary: StressSummary) -> Group:
    """Everything that is shown of a stress study."""
    return Group(*_parts(summary))


def _parts(summary: StressSummary) -> Iterator[RenderableType]:
    yield Text(
        f"study {summary.name}: {summary.num_finished} of {summary.num_planned} runs finished",
        style="bold",
    )
    for remedy in dict.fromkeys(run.remedy for run in summary.runs):
        mine = [run for run in summary.runs if run.remedy == remedy]
        yield Text(f"\n{_REMEDIES[remedy]}: validation loss at the end, by peak learning rate")
        yield _losses(mine)
        yield Text(f"{_REMEDIES[remedy]}: the largest and smallest seen in any step")
        yield _signs(mine)
    if summary.fails_above is not None:
        yield Text(
            f"! fails: diverged (NaN: weights not finite; scale: the loss scale collapsed), or "
            f"ends at {summary.fails_above:.2f} or above, so far from the baseline's best run, "
            f"{summary.best_loss:.2f}, as the plan said."
        )
    for failure in summary.first_failures:
        yield Text(f"• {_sentence(failure)}")
    if summary.num_seeds == 1:
        yield Text("One seed a cell: screening. It shows where runs failed, not how often they do.")


def _losses(runs: list[StressRun]) -> Table:
    recipes = list(dict.fromkeys(run.recipe for run in runs))
    table = _table(*recipes)
    for rate in dict.fromkeys(run.peak_lr for run in runs):
        cells = []
        for recipe in recipes:
            mine = [r for r in runs if (r.peak_lr, r.recipe) == (rate, recipe)]
            cells.append(" ".join(_loss(run) for run in mine))
        table.add_row(f"{rate:g}", *cells)
    return table


def _loss(run: StressRun) -> str:
    text = _EXITS.get(run.exit_reason, "–")
    if run.validation_loss is not None:
        text = f"{run.validation_loss:.3f}"
    return f"{text} !" if run.fails else f"{text}  "


def _signs(runs: list[StressRun]) -> Table:
    table = _table(
        "recipe", "attention\nlogit", "log Z", "grad RMS\n/ eps", "below\neps", "skipped",
        "loss\nscale",
    )  # fmt: skip
    for run in runs:
        below = run.max_share_below_eps
        table.add_row(
            f"{run.peak_lr:g}",
            run.recipe,
            _number(run.max_attention_logit),
            _number(run.max_log_normalizer),
            _number(run.min_gradient_rms_by_eps),
            "–" if below is None else f"{below:.2%}",
            str(run.skipped_steps),
            _scale(run.min_loss_scale),
        )
    return table


def _table(*headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("peak lr", no_wrap=True, vertical="bottom")
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True, vertical="bottom")
    return table


def _scale(value: float) -> str:
    exponent = math.log2(value)
    return "1" if value == 1 else f"2^{exponent:.0f}" if exponent.is_integer() else f"{value:.3g}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _sentence(failure: FirstFailure) -> str:
    where = f"{failure.recipe}, {_REMEDIES[failure.remedy]}"
    if failure.peak_lr is None:
        return f"{where}: fails at none of the rates up to {failure.highest_without:g}."
    why = {"loss": "by its loss", "diverged": "its weights are no longer finite"}
    without = failure.highest_without
    below = "the lowest" if without is None else f"not at {without:g}"
    return f"{where}: first at {failure.peak_lr:g} ({why.get(failure.why, failure.why)}), {below}."
