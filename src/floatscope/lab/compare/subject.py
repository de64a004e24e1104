"""What is compared: a preset, a study file, a run, a model of the user's own, or a config.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from floatscope.errors import StudyError, unknown
from floatscope.lab.memory.target import Spec, target_of
from floatscope.lab.probe.subject import (
    State,
    Subject,
    first_batch,
    subject_of_factory,
    subject_of_run,
    text_called,
)
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.run.train import batch_loss, initial_model
from floatscope.lab.study.choose import choose
from floatscope.lab.study.folder import STUDY, open_study
from floatscope.lab.study.presets import PRESETS
from floatscope.lab.text.corpus import check_length, encode
from floatscope.recipes import Recipe, recipe

LARGEST_BATCH = 1 << 20
LARGEST_SEED = 2**63 - 1


def subject_called(
    model: str, *, text: str | None = None, batch_size: int | None = None, seed: int | None = None
) -> Subject:
    """The subject that `model` names.

    Args:
        model: the folder of a run or a study: its first and its last weights (`subject_of_run`); a
            preset or a study file: the model before its first step, on its first batch;
            `package.module:function` or `file.py:function` (`factory_called`); or a Hugging
            Face config.json, whose weights and token ids are random.
        text: of a run, a preset or a study file, if it is not the built-in world.
        batch_size: sequences or images; None for as many as the run, study or kind of model has.
        seed: decides what a preset, a study file, a function or a config.json draws; None for the
            study's first, or 0.

    Raises:
        StudyError: no such preset, file, folder or function, an option that this kind of model
            does not have, or one out of range.
        LedgerError: a config.json that cannot be used.
        TextError: the text cannot be read, or is too short.
    """
    if batch_size is not None and not 1 <= batch_size <= LARGEST_BATCH:
        raise StudyError(f"--batch must lie between 1 and {LARGEST_BATCH}, not {batch_size}.")
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise StudyError(f"--seed must lie between 0 and 2^63 - 1, not {seed}.")
    if model in PRESETS or model.endswith(".toml"):
        return _of_plan(model, text, batch_size, seed)
    is_config = model.endswith(".json") or (Path(model) / "config.json").is_file()
    if Path(model).is_dir() and not is_config:
        return subject_of_run(Path(model), text, batch_size=batch_size)
    if text is not None:
        raise StudyError(f"--text does not go with {model}: it decides on its batch by itself.")
    if is_config:
        return _seeded(lambda: _of_config(model, batch_size), seed)
    if ":" not in model:
        kinds = [*PRESETS, "FILE.toml", "FOLDER", "PACKAGE.MODULE:FUNCTION", "FILE.py:FUNCTION",
                 "config.json"]  # fmt: skip
        raise StudyError(unknown("model", model, kinds))
    if batch_size is not None:
        raise StudyError(f"--batch does not go with {model}: its function gives the batch.")
    return _seeded(lambda: subject_of_factory(model), seed)


def recipes_called(model: str, names: Sequence[str]) -> list[Recipe | str]:
    """The names, with the definition in place of each that a study on disk has for its own.

    Args:
        model: the study's folder, or that of one of its runs; of anything else, all names stay.
        names: of recipes or recipe files.

    Raises:
        StudyError: the study's record is damaged.
    """
    if model in PRESETS:
        return [*names]
    near = Path(model), Path(model).absolute().parent.parent
    study = next((folder for folder in near if (folder / STUDY).is_file()), None)
    own = {r.name: r for r in open_study(study).plan.own_recipes} if study is not None else {}
    return [own.get(name, name) for name in names]


def _of_plan(name: str, text: str | None, batch_size: int | None, seed: int | None) -> Subject:
    plan = choose(name, text=text)
    run = RunPlan(
        recipe=recipe("fp32"),
        seed=plan.seeds[0] if seed is None else seed,
        model=plan.model,
        train=plan.train,
        threads=plan.threads,
    )
    content = text_called(plan.text)
    tokens, _ = encode(content, plan.model.vocab_size)
    size = batch_size or plan.train.batch_size
    lengths = (len(tokens.train), len(tokens.validation))
    check_length(content.name, *lengths, batch=size, context=plan.model.context)
    batch = first_batch(run, tokens, size)
    return Subject(
        label=f"{plan.name}, seed {run.seed}",
        states=(State("initialization", initial_model(run), lambda m: batch_loss(m, batch)),),
        origin={"plan": run.to_dict(), "batch_size": size, "data_sha256": tokens.sha256},
    )


def _of_config(model: str, batch_size: int | None) -> Subject:
    target = target_of(Spec(model=model, batch_size=batch_size))
    module, given = target.make()
    state = State("random weights and batch", module, lambda m: target.loss_of(m, given))
    return Subject(label=model, states=(state,), origin={"model": model, **target.shape})


def _seeded(make: Callable[[], Subject], seed: int | None) -> Subject:
    """What `make` makes from Torch's generator, seeded; the generator is put back."""
    with torch.random.fork_rng():
        torch.manual_seed(seed or 0)
        return make()
