"""`floatscope memory`: where a training step's bytes go, by formula, by trace and by meter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floatscope.cli.memory_fit import fit, selftest

if TYPE_CHECKING:
    from floatscope.lab.memory.neighbors import Neighbors
    from floatscope.lab.memory.target import Target
    from floatscope.lab.memory.witnesses import Arm

CLAIM_FAILED = 3
"""Exit status where something ran and a claim does not hold."""


@click.group()
def memory() -> None:
    """Account for every byte of a training step.

    MODEL is a preset (quick, novel), a study file, a model of yours (package.module:function or
    file.py:function), or a Hugging Face config.json. A function takes nothing and returns (model,
    batch) or (model, loss_of); a batch is what the model is called with, and the model then returns
    its loss.
    """


memory.add_command(fit)
memory.add_command(selftest)


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of every verb that looks at a model."""
    options = [
        click.argument("model", default="quick"),
        click.option("--recipe", "recipes", help="Recipes, separated by commas."),
        click.option("--batch-size", type=int, help="Sequences or images in the batch."),
        click.option("--context", type=int, help="Tokens in a sequence."),
        click.option("--attention", help="fused or materialized; for presets and study files."),
        click.option("--optimizer", default="adamw", help="adamw, sgd-momentum, adafactor, …"),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


device_option = click.option("--device", default="cpu", help="cpu, or this machine's accelerator.")
backend_option = click.option(
    "--backend", default="auto", help="Who computes 16-bit products: auto, native or emulated."
)


@memory.command()
@model_options
def theory(recipes: str | None, as_json: bool, **given: Any) -> None:
    """What formulas say: states, the standard block's activations, the closed form."""
    from floatscope.cli.console import errors, interruptible, output, print_json
    from floatscope.cli.memory_theory import theory_of, theory_table
    from floatscope.lab.study.progress import Display

    target = _target(given)
    names = _recipes(recipes, ("fp32", "bf16-mixed"))
    with (
        interruptible("interrupted"),
        Display(None if as_json else errors) as display,
        display.task("adding up"),
    ):
        found = [theory_of(target, name) for name in names]
    if as_json:
        print_json({"model": target.spec.model, "shape": target.shape, "arms": found})
    else:
        output.print(theory_table(target, found), width=max(80, output.width))


@memory.command()
@model_options
@backend_option
@device_option
@click.option("--check/--no-check", default=True,
              help="Hold trace to meter at a tiny shape first.")  # fmt: skip
@click.option("--tiny", help="The tiny shape of a model of yours: another function of the same.")
@click.option("--out", type=Path, help="A folder to write the record to.")
def trace(
    recipes: str | None,
    backend: str,
    check: bool,
    tiny: str | None,
    out: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Predict two steps, stage by stage, on tensors without data: nothing is allocated."""
    from floatscope.cli.console import errors, interruptible
    from floatscope.cli.memory_advice import checked
    from floatscope.lab.memory.witnesses import traced_arm
    from floatscope.lab.study.progress import Display

    _check_out(out)
    target = _target(given)
    names = _recipes(recipes, ("fp32",))
    with (
        interruptible("interrupted; nothing was written"),
        Display(None if as_json else errors) as display,
    ):
        arms, said = [], []
        for name in names:
            with display.task(f"tracing {name}"):
                arms.append(traced_arm(target, name, backend))
        if check:
            with display.task("holding trace to meter at a tiny shape"):
                said = checked(target, arms[0], backend, tiny)
        _keep(out, target, arms, ())
    _show(target, arms, (), as_json, said=said, advise=True)


@memory.command()
@model_options
@backend_option
@device_option
@click.option("--out", type=Path, help="A folder to write the record to.")
@click.option("--into", type=Path, help="Fill the memory field of a file of floatscope export.")
def measure(
    recipes: str | None,
    backend: str,
    out: Path | None,
    into: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure two steps of each recipe in a process of its own; run it alone.

    Looks for other users of the machine first, and records whether there were any and the load.
    """
    if into is not None:
        from floatscope.report.export import read_export

        read_export(into)  # or an hour is measured for nothing
    target = _target(given)
    default = ("fp32", "bf16-mixed", "fp16-mixed", "fp16-mixed-unscaled")
    names = _recipes(recipes, default if target.numbers else default[:2])
    arms, seen = _measured(target, names, backend, out, as_json)
    if into is not None:
        _fill(into, target, arms, seen)
    _show(target, arms, seen, as_json)
    if any(not a["holds"] for a in _accepted(target, arms)):
        raise click.exceptions.Exit(CLAIM_FAILED)


@memory.command()
@model_options
@backend_option
@device_option
@click.option("--out", type=Path, help="A folder to write the record to.")
def reconcile(
    recipes: str | None, backend: str, out: Path | None, as_json: bool, **given: Any
) -> None:
    """From the formula to the measurement in signed terms, and from recipe to recipe.

    Each recipe is measured in a process of its own. Exit status 3 if a byte is unexplained.
    """
    from floatscope.cli.console import output, print_json
    from floatscope.cli.memory_reconcile import reconciled, reconciled_table

    target = _target(given)
    names = _recipes(recipes, ("fp32", "bf16-mixed"))
    arms, seen = _measured(target, names, backend, out, as_json)
    found = reconciled(target, arms)
    if as_json:
        print_json(found)
    else:
        output.print(reconciled_table(target, arms, seen), width=max(80, output.width))
    if any(arm.unexplained for arm in arms) and target.numbers is not None:
        raise click.exceptions.Exit(CLAIM_FAILED)


def _target(given: dict[str, Any]) -> Target:
    from floatscope.lab.memory.target import Spec, target_of

    return target_of(Spec(**given))


def _recipes(given: str | None, default: Sequence[str]) -> list[str]:
    """Names of recipes, checked, each once."""
    from floatscope.errors import RecipeError
    from floatscope.recipes import recipe

    names = [name.strip() for name in given.split(",")] if given is not None else list(default)
    if files := [name for name in names if name.endswith(".toml")]:
        raise RecipeError(
            f"--recipe {files[0]}: memory accounts for recipes of the catalogue alone. Name the "
            f"one that is nearest; its base, if the file names one."
        )
    return list(dict.fromkeys(recipe(name).name for name in names))


def _measured(
    target: Target, names: Sequence[str], backend: str, out: Path | None, as_json: bool
) -> tuple[list[Arm], list[Neighbors]]:
    """Each recipe in a fresh process, the neighbors looked for before each."""
    import psutil

    from floatscope.cli.console import errors, interruptible
    from floatscope.lab.memory.neighbors import neighbors
    from floatscope.lab.memory.witnesses import measured_arm
    from floatscope.lab.study.progress import Display
    from floatscope.recipes import check_backend

    check_backend(backend)
    _check_out(out)
    arms, seen = [], []
    with (
        interruptible("interrupted; nothing was written"),
        Display(None if as_json else errors) as display,
    ):
        for name in names:
            with display.task("looking for other users of the machine"):
                seen.append(neighbors(target.spec.device))
            if not seen[-1].alone:
                others = ", ".join((*seen[-1].busy, *seen[-1].on_device))
                display.note(f"{name}: not alone on this machine: {others}")
            with display.task(f"measuring {name}"):
                spare = psutil.virtual_memory().available
                arms.append(measured_arm(target, name, backend, spare))
        _keep(out, target, arms, seen)
    return arms, seen


def _keep(out: Path | None, target: Target, arms: Sequence[Arm], seen: Sequence[Neighbors]) -> None:
    from floatscope.lab.memory.record import keep

    if out is not None:
        keep(out, target, arms, seen)


def _check_out(out: Path | None) -> None:
    """Before anything is measured."""
    from floatscope.errors import LedgerError

    if out is not None and not out.name:
        raise LedgerError("--out is empty; name a folder for the record.")
    if out is not None and out.is_file():
        raise LedgerError(f"--out {out}: there is a file of this name; name a folder.")


def _fill(into: Path, target: Target, arms: Sequence[Arm], seen: Sequence[Neighbors]) -> None:
    from floatscope.lab.memory.record import record
    from floatscope.report.export import fill_memory

    fill_memory(into, record(target, arms, seen))


def _accepted(target: Target, arms: Sequence[Arm]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from floatscope.lab.memory.witnesses import acceptance

    return [asdict(a) for arm in arms for a in acceptance(arm, target)]


def _show(
    target: Target,
    arms: Sequence[Arm],
    seen: Sequence[Neighbors],
    as_json: bool,
    *,
    said: Sequence[str] = (),
    advise: bool = False,
) -> None:
    from floatscope.cli.console import output, print_json
    from floatscope.cli.memory_advice import advice_of
    from floatscope.cli.memory_show import shown
    from floatscope.lab.memory.record import record

    advice = {arm.recipe: advice_of(arm) for arm in arms} if advise else {}
    if as_json:
        print_json({**record(target, arms, seen), "checked": list(said), "advice": advice})
    else:
        output.print(shown(target, arms, seen, said, advice), width=max(80, output.width))
