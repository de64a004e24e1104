"""What is probed: a model in one or more states, each with a batch and a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from floatscope.errors import StudyError
from floatscope.lab.models import factory_called, output_for
from floatscope.lab.run import checkpoint, records
from floatscope.lab.run.batches import Batch, training_batch
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.run.train import WEIGHTS, batch_loss, initial_model
from floatscope.lab.study.folder import STUDY, open_study
from floatscope.lab.study.plan import BASELINE, WORLD
from floatscope.lab.text.corpus import Text, Tokens, encode, read_text
from floatscope.lab.text.world import world_text

LossOf = Callable[[nn.Module], Any]


@dataclass(frozen=True)
class State:
    """A model at one moment, ready for one backward pass."""

    name: str
    """Such as "initialization"."""
    model: nn.Module
    loss_of: LossOf
    """From the model to a scalar tensor, or to an output that has one as its loss."""


@dataclass(frozen=True)
class Subject:
    """What `probe` looks at."""

    label: str
    states: tuple[State, ...]
    origin: dict[str, Any] = field(default_factory=dict)
    """Where it comes from, for the record: plain JSON values."""
    folder: Path | None = None
    """The run's own, where its records go."""


def subject_of_run(
    path: Path, text: str | None = None, *, batch_size: int | None = None
) -> Subject:
    """A finished run: its initialization and its last weights, on its first training batch.

    Args:
        path: the run's folder, or a study's, which stands for its first fp32 run.
        text: the text that the run was trained on, if it was not the built-in world.
        batch_size: sequences in the batch, if not as many as it was trained with.

    Raises:
        StudyError: no finished run, its weights are missing, damaged or of another run, or the
            text is another one.
        TextError: the text cannot be read.
    """
    folder = _run_folder(path)
    try:
        manifest = records.load(folder).manifest
    except FileNotFoundError:
        raise StudyError(
            f"{folder} holds no finished run: there is no {records.MANIFEST} in it. Name the "
            "folder of a run (studies/NAME/runs/RUN) or of a study."
        ) from None
    plan = RunPlan.from_dict(manifest.plan)
    trained = initial_model(plan)
    _load_weights(trained, folder / WEIGHTS, manifest.run_id)
    tokens = _tokens(plan, manifest.data_sha256, folder, text)
    batch = first_batch(plan, tokens, batch_size)
    return Subject(
        label=manifest.label,
        states=(
            State("initialization", initial_model(plan), lambda model: batch_loss(model, batch)),
            State("end of training", trained, lambda model: batch_loss(model, batch)),
        ),
        origin={
            "run_id": manifest.run_id,
            "label": manifest.label,
            "plan": manifest.plan,
            "data_sha256": manifest.data_sha256,
            "steps_done": manifest.steps_done,
            "exit_reason": manifest.exit_reason,
        },
        folder=folder,
    )


def _run_folder(path: Path) -> Path:
    if not path.is_dir():
        raise StudyError(f"{path} is no folder. Name the folder of a run or of a study.")
    if not (path / STUDY).exists():
        return path
    study = open_study(path)
    for run, found in study.finished():
        if run.recipe.name == BASELINE and not run.ulp_rerun:
            return found.folder
    raise StudyError(
        f"the study in {path} has no finished {BASELINE} run. Name the folder of another: "
        f"{path / 'runs'}/..."
    )


def _load_weights(model: nn.Module, path: Path, run_id: str) -> None:
    if not path.exists():
        raise StudyError(
            f"there is no {path}: a run's records may travel without its weights. Run its study "
            "again; on the same machine it leaves the same weights."
        )
    try:
        tensors, metadata = checkpoint.opened(path)
    except (SafetensorError, OSError) as error:
        raise StudyError(f"the weights {path} are damaged: {error}.") from None
    found = metadata.get("run_id")
    if found != run_id:
        raise StudyError(f"{path} belongs to another run ({found}, not {run_id}).")
    try:
        model.load_state_dict(tensors, strict=False)
        missing = dict(model.named_parameters()).keys() - tensors.keys()
    except RuntimeError as error:
        raise StudyError(f"{path} does not fit this run's model: {error}") from None
    if missing:
        raise StudyError(f"{path} does not fit this run's model: it lacks {sorted(missing)[0]}.")


def _tokens(plan: RunPlan, data_sha256: str, folder: Path, text: str | None) -> Tokens:
    content = text_called(text or _text_of_study(folder))
    tokens, _ = encode(content, plan.model.vocab_size)
    if tokens.sha256 != data_sha256:
        raise StudyError(
            f"{folder} was trained on another text than {content.name}. Name its own with --text."
        )
    return tokens


def text_called(name: str | None) -> Text:
    """The text in a file; the built-in world for its name or None.

    Raises:
        TextError: the file cannot be read.
    """
    return world_text() if name in (None, WORLD) else read_text(Path(name))


def first_batch(plan: RunPlan, tokens: Tokens, size: int | None = None) -> Batch:
    """The first training batch of a run, or as many sequences as `size` drawn in its place."""
    return training_batch(
        tokens.train,
        seed=plan.seed,
        step=0,
        size=size or plan.train.batch_size,
        context=plan.model.context,
    )


def _text_of_study(folder: Path) -> str | None:
    """The name of the text if the run lies in a study's folder; records hold no path."""
    study = folder.parent.parent
    if not (study / STUDY).exists():
        return None
    name = open_study(study).plan.text
    if name == WORLD or Path(name).exists():
        return name
    raise StudyError(
        f"{folder} was trained on {name}, which is not here. Name its place with --text."
    )


def subject_of_factory(name: str) -> Subject:
    """A model of the user's own, as `factory_called` describes it.

    Raises:
        StudyError: there is no such function, it raised, or returned something else.
    """
    model, given = factory_called(name)()
    state = State("as given", model, lambda model: output_for(model, given))
    return Subject(label=name, states=(state,), origin={"model": name})
