"""From a tape to ledgers: what every storage is, at the end of each stage and at its peak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from floatscope.memory.engine import QUANTIZED
from floatscope.memory.ledger import Category, Ledger, Lifetime, Row, Stage
from floatscope.memory.storages import tensors_in
from floatscope.memory.tape import Allocation, Tape
from floatscope.memory.watch import Watch
from floatscope.memory.workload import Alive

Witness = Literal["meter", "trace"]

LOSSES = frozenset(
    {
        "cross_entropy", "nll_loss", "log_softmax", "mse_loss", "l1_loss", "smooth_l1_loss",
        "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
        "ctc_loss",
    }
)  # fmt: skip
"""Functions whose tensors belong to the loss also where a module of the model calls them."""

MOMENTS = {
    "exp_avg": Category.FIRST_MOMENT,
    "momentum_buffer": Category.FIRST_MOMENT,
    "exp_avg_sq": Category.SECOND_MOMENT,
    "square_avg": Category.SECOND_MOMENT,
    "master": Category.MASTER,
}
"""Names of optimizer state; others are other optimizer state."""

HELD = (
    "alive though autograd did not save it: kept by the caller, or by a custom function's context"
)
KEPT_BY_ENGINE = (
    "kept by the engine from forward to backward, in a tensor of a wider format than its values: a "
    "device keeps them in their own format, if at all"
)


class Label(NamedTuple):
    """What a storage is, told by who holds it."""

    term: str
    category: Category
    module: str
    lifetime: Lifetime


class History(NamedTuple):
    """What happened, and what each storage is where somebody holds it."""

    tape: Tape
    labels: Mapping[int, Label]

    def is_of_loss(self, number: int) -> bool:
        """Whether a storage belongs to the loss or is the model's output."""
        saver = self.tape.saved.get(number)
        return number not in self.labels and (
            _is_of_loss(self.tape.allocations[number], number in self.tape.outputs)
            or (saver is not None and saver.place.module == "(loss)")
        )


@dataclass(frozen=True)
class StageMemory:
    """One stage's memory; bytes are the ledgers' totals."""

    stage: Stage
    live: Ledger
    """What is allocated when it has ended."""
    peak: Ledger
    """What is allocated when most is, during it."""
    engine: int = 0
    """The most that the engine of recipes holds for itself at any moment of it, in bytes: fp32
    copies and quantized operands. At the peak it may hold less, or nothing."""


@dataclass(frozen=True)
class Measurement:
    """Two steps' memory, stage by stage."""

    witness: Witness
    stages: tuple[StageMemory, ...]
    saved: Ledger
    """What the first forward keeps for backward, parameters and buffers left out."""
    backend: str
    """Which backend computed, or would compute: "native" or "emulated"."""
    notes: tuple[str, ...] = ()
    """What could not be counted, or did not happen, and why."""
    history: History | None = field(default=None, compare=False, repr=False)
    """Every event, for replays; None in a measurement that was read from a record."""

    def __getitem__(self, stage: Stage | str) -> StageMemory:
        return {str(s.stage): s for s in self.stages}[stage]

    @property
    def peak(self) -> StageMemory:
        """The stage that peaks highest."""
        return max(self.stages, key=lambda stage: stage.peak.total)

    def to_dict(self) -> dict[str, Any]:
        """The measurement as plain JSON values; sizes in bytes."""
        return {
            "witness": self.witness,
            "backend": self.backend,
            "notes": list(self.notes),
            "saved": self.saved.to_dict(),
            "stages": [
                {"stage": str(s.stage), "live": s.live.to_dict(), "peak": s.peak.to_dict(),
                 "engine": s.engine}
                for s in self.stages
            ],
        }  # fmt: skip

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Measurement:
        """The measurement that `to_dict` wrote.

        Raises:
            LedgerError: a ledger that is none.
            KeyError: a field is missing.
        """
        stages = tuple(
            StageMemory(Stage(s["stage"]), Ledger.from_dict(s["live"]),
                        Ledger.from_dict(s["peak"]), s["engine"])
            for s in data["stages"]
        )  # fmt: skip
        saved = Ledger.from_dict(data["saved"])
        return Measurement(data["witness"], stages, saved, data["backend"], tuple(data["notes"]))


class Labels:
    """Who holds which storage; the first holder named keeps it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._labels: dict[int, Label] = {}

    def __getitem__(self, number: int) -> Label | None:
        return self._labels.get(number)

    @property
    def by_number(self) -> Mapping[int, Label]:
        return self._labels

    def read(self, alive: Alive) -> None:
        """Look at everything that a workload holds now."""
        model = alive.model
        for name, parameter in model.named_parameters():
            self._add(parameter, name, "", Category.PARAMETERS, Lifetime.RUN)
        for name, buffer in model.named_buffers():
            self._add(buffer, name, "", Category.BUFFERS, Lifetime.RUN)
        for name, tensor in _attributes(model):
            if not self._watch.tape.saved.keys() & {*self._watch.numbers([tensor])}:
                self._add(tensor, name, " (attribute)", Category.BUFFERS, Lifetime.RUN)
        for tensor in tensors_in(alive.batch):
            self._label([tensor], Label("batch", Category.INPUT, "", Lifetime.RUN))
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self._add(parameter.grad, name, "", Category.GRADIENTS, Lifetime.GRADIENT)
        self._read_optimizer(alive)
        if alive.loss is not None:
            self._label([alive.loss], Label("loss", Category.LOSS, "(loss)", Lifetime.SAVED))

    def _read_optimizer(self, alive: Alive) -> None:
        if alive.optimizer is None or alive.keeping is None:
            return
        names = {id(p): name for name, p in alive.model.named_parameters()}
        for name, tensor, category in alive.keeping.held():
            self._add(tensor, name, "", category, Lifetime.RUN)
            names[id(tensor)] = name.partition(":")[0]
        for parameter, state in alive.optimizer.state.items():
            path = names.get(id(parameter), "")
            for key, value in state.items() if isinstance(state, dict) else ():
                category = MOMENTS.get(key, Category.OPTIMIZER)
                for tensor in tensors_in(value):
                    self._add(tensor, path, f": {key}", category, Lifetime.RUN)
        groups = Label("option of a group", Category.OPTIMIZER, "(optimizer)", Lifetime.RUN)
        for group in alive.optimizer.param_groups:
            options = {name: value for name, value in group.items() if name != "params"}
            self._label(tensors_in(options), groups)
        if alive.scaler is not None:
            scale = Label("loss scale", Category.OPTIMIZER, "(optimizer)", Lifetime.RUN)
            self._label(tensors_in(vars(alive.scaler._scaler)), scale)

    def _add(
        self, tensor: Tensor, path: str, suffix: str, category: Category, lifetime: Lifetime
    ) -> None:
        module, _, name = path.rpartition(".")
        self._label([tensor], Label(name + suffix, category, module, lifetime))

    def _label(self, tensors: Iterable[Tensor], label: Label) -> None:
        for number in self._watch.numbers(tensors):
            self._labels.setdefault(number, label)


def _attributes(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that modules hold as plain attributes, neither parameters nor buffers."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                for tensor in tensors_in(value):
                    yield f"{path}.{name}" if path else name, tensor


def measurement(watch: Watch, labels: Labels, witness: Witness, alive: Alive) -> Measurement:
    """Everything that the tape says, once the last stage has ended."""
    tape = watch.tape
    stages = []
    engines = {n for n, made in enumerate(tape.allocations) if made.made_as}
    for stage, (first, last) in tape.stages.items():
        _, where = tape.peak(first, last)
        live = Ledger(_rows(tape, labels, last, held=True))
        peak = Ledger(_rows(tape, labels, where, held=False))
        engine, _ = tape.peak(first, last, engines)
        stages.append(StageMemory(stage, live, peak, engine))
    saved = Ledger(_saved_rows(tape, labels, Stage.FORWARD))
    notes = (*alive.notes, *_notes(watch))
    history = History(tape, labels.by_number)
    return Measurement(witness, tuple(stages), saved, alive.backend, notes, history)


def _notes(watch: Watch) -> Iterator[str]:
    for kind in sorted(watch.uncounted):
        yield f"tensors of layout {kind} have no storage that can be counted; they are left out"


def _saved_rows(tape: Tape, labels: Labels, stage: Stage) -> Iterator[Row]:
    """What is saved when a forward ends; inputs too, parameters and buffers not."""
    if stage not in tape.stages:
        return
    for number, size in tape.live_at(tape.stages[stage][1]).items():
        label = labels[number]
        if number in tape.saved and (label is None or label.category is Category.INPUT):
            yield _saved_row(tape, number, size, label)


def _rows(tape: Tape, labels: Labels, position: int, *, held: bool) -> Iterator[Row]:
    for number, size in tape.live_at(position).items():
        label = labels[number]
        if label is not None:
            yield _labelled_row(tape, number, size, label)
        elif number in tape.saved:
            yield _saved_row(tape, number, size, None)
        else:
            yield _other_row(tape, number, size, held=held)


def _labelled_row(tape: Tape, number: int, size: int, label: Label) -> Row:
    allocation = tape.allocations[number]
    return Row(
        term=label.term,
        category=label.category,
        bytes=size,
        module=label.module,
        dtype=allocation.dtype,
        lifetime=label.lifetime,
        stage=allocation.stage,
        count=1,
    )


def _saved_row(tape: Tape, number: int, size: int, label: Label | None) -> Row:
    allocation, saver = tape.allocations[number], tape.saved[number]
    if label is not None:
        category = label.category
    elif allocation.is_cast:
        category = Category.CASTS
    elif _is_of_loss(allocation, number in tape.outputs) or saver.place.module == "(loss)":
        category = Category.LOSS
    else:
        category = Category.ACTIVATIONS
    return Row(
        term=label.term if label else _made_by(replace(allocation, made_as="")),
        category=category,
        bytes=size,
        module=saver.place.module,
        operation=saver.place.operation,
        dtype=saver.dtype,
        lifetime=Lifetime.SAVED,
        stage=Stage.FORWARD if label else allocation.stage,
        count=1,
    )


def _other_row(tape: Tape, number: int, size: int, *, held: bool) -> Row:
    allocation = tape.allocations[number]
    category = _category_of_other(allocation, number in tape.outputs, held=held)
    return Row(
        term=_made_by(allocation),
        category=category,
        bytes=size,
        module=allocation.place.module,
        operation=allocation.place.operation,
        dtype=allocation.dtype,
        lifetime=_lifetime(allocation, held=held),
        stage=allocation.stage,
        count=1,
        reason=_reason(allocation, category, held=held),
    )


def _category_of_other(allocation: Allocation, is_output: bool, *, held: bool) -> Category:
    """What a storage is that nobody named and autograd did not save.

    At the end of a stage only the model's output, kept by the caller, and tensors older than the
    measurement have an explanation.
    """
    if allocation.made_as:
        is_operand = allocation.made_as.startswith(QUANTIZED)
        return Category.CASTS if is_operand else Category.TEMPORARIES
    if allocation.is_older:
        return Category.BUFFERS
    if _is_of_loss(allocation, is_output) and (is_output or not held):
        return Category.LOSS
    if held:
        return Category.UNEXPLAINED
    if allocation.stage in (Stage.OPTIMIZER, Stage.ZERO_GRAD):
        return Category.OPTIMIZER_TEMPORARIES
    return Category.CASTS if allocation.is_cast else Category.TEMPORARIES


def _lifetime(allocation: Allocation, *, held: bool) -> Lifetime:
    if not held:
        return Lifetime.TEMPORARY
    return Lifetime.SAVED if allocation.made_as else Lifetime.HELD


def _reason(allocation: Allocation, category: Category, *, held: bool) -> str:
    if category is Category.UNEXPLAINED:
        return HELD
    return KEPT_BY_ENGINE if held and allocation.made_as else ""


def _is_of_loss(allocation: Allocation, is_output: bool) -> bool:
    place = allocation.place
    return is_output or place.module == "(loss)" or place.operation in LOSSES


def _made_by(allocation: Allocation) -> str:
    if allocation.is_older:
        return "made before the measurement"
    if allocation.made_as:
        return allocation.made_as
    operation = allocation.place.operation or "custom code"
    if allocation.is_cast:
        return f"cast in {operation}"
    return f"{'gradient' if allocation.in_backward else 'result'} of {operation}"
