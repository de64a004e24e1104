"""`capture`: a context in which the spectra of a model at work are collected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from floatscope.errors import SpectrumError, unknown
from floatscope.formats import Format
from floatscope.spectrum.capture.attach import Called, before_calls
from floatscope.spectrum.capture.clock import Clock
from floatscope.spectrum.capture.fsdp1 import Fsdp1
from floatscope.spectrum.capture.hooks import OF_OUTPUTS, Activations
from floatscope.spectrum.capture.pending import Pending
from floatscope.spectrum.capture.records import (
    ROLES,
    Notes,
    Record,
    Role,
    Unseen,
    Update,
    select,
)
from floatscope.spectrum.capture.scales import loss_scale_of
from floatscope.spectrum.capture.sites import ParameterSite, chosen, is_fsdp1, sites_of
from floatscope.spectrum.capture.updates import UPDATE, Updates
from floatscope.spectrum.capture.weights import Weights
from floatscope.spectrum.predict import float_format
from floatscope.spectrum.spectrum import Spectrum


@contextmanager
def capture(
    model: nn.Module,
    *,
    optimizer: Optimizer | None = None,
    loss_scale: Any = None,
    roles: Role | Iterable[Role] | None = None,
    pattern: str | Iterable[str] = "*",
    every: int = 1,
    first_step: int = 0,
    storage: Format | str | Sequence[Format | str] = ("bf16", "fp16"),
) -> Iterator[Capture]:
    """Inside it, collect spectra of the model's weights, activations, gradients and updates.

        with fs.capture(model, optimizer=optimizer, loss_scale=scaler, every=10) as seen:
            train()
        seen.total(role="weight_gradient").underflow("fp16")

    No value is changed: what is trained inside it is trained to the same bits. (One module of Torch
    looks for hooks: in evaluation, `nn.TransformerEncoderLayer` then leaves its fused path.) All
    hooks are gone afterwards.

    A step ends when `optimizer` has stepped; when a loss scaler has withheld its step, which a
    `GradScaler` notes and any other loss scale shows by falling; and at `seen.next_step()`, which
    does nothing right after the optimizer's step and so may be called after every iteration. With
    neither an optimizer nor a `GradScaler`, only `next_step()` ends a step.

    Several forward and backward passes in a step are merged. That includes evaluations, under
    `no_grad` or not; run them in `with seen.paused():`. What activation checkpointing recomputes
    counts once. A weight gradient is what the step's last backward pass left, before anyone
    unscaled or clipped it, and with `DistributedDataParallel` or FSDP after it was reduced. Of a
    sharded tensor, this process measures its own part.

    Args:
        model: any module. Where parts of it are compiled, see `Capture.unseen`.
        optimizer: whose steps are counted and whose updates are measured.
        loss_scale: what multiplied the loss: a `torch.amp.GradScaler`, an object with an attribute
            `loss_scale` (a `floatscope.TrainStep`), a number, or a function that returns one. It is
            read during each backward pass, and gradients are divided by it. None is 1.
        roles: what to measure, of "weight", "activation", "activation_gradient", "weight_gradient"
            and "update"; by default everything (updates with an optimizer only).
        pattern: which modules, by their paths: a glob such as "blocks.*.ff.*", or several. `*`
            stands for any characters, dots too. Parameters go with the module that owns them.
        every: measure only steps whose number is a multiple of it.
        first_step: number of the first step, for a run that is resumed.
        storage: float formats in which to count swallowed updates.

    Yields:
        What was seen; it stays readable.

    Raises:
        SpectrumError: nothing to watch, no module with such a path, an unknown role, updates
            without an optimizer or with one of another model, or an impossible `every`,
            `first_step` or `loss_scale`.
        FormatError: a storage format is unknown or no float format.
    """
    if not isinstance(model, nn.Module):
        raise SpectrumError(f"capture watches a torch.nn.Module, not {type(model).__name__}.")
    patterns = [pattern] if isinstance(pattern, str) else [*pattern]
    seen = Capture(
        model,
        optimizer,
        loss_scale,
        _roles(roles, optimizer),
        patterns,
        _whole("every", every, 1),
        _whole("first_step", first_step, 0),
        storage,
    )
    with ExitStack() as hooks:
        seen._open(hooks)
        try:
            yield seen
        finally:
            seen._clock.close()


class Capture:
    """What a capture has seen; it grows while the capture lasts. Made by `capture`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        loss_scale: Any,
        roles: set[Role],
        patterns: list[str],
        every: int,
        first_step: int,
        storage: Format | str | Sequence[Format | str],
    ) -> None:
        everything = sites_of(model)
        _check_optimizer(optimizer, everything.parameters)
        sites = chosen(everything, patterns)
        self._model = model
        self._records: list[Record] = []
        self._notes = Notes()
        self._pending = Pending()
        loss = loss_scale_of(loss_scale, optimizer)
        self._clock = clock = Clock(every, first_step, loss, self._begin, self._end)
        self._activations = Activations(sites.modules, roles, clock, self._pending)
        self._weights = Weights(
            sites.parameters, everything.parameters, roles, clock, self._pending
        )
        self._updates = Updates(
            optimizer,
            sites.parameters if UPDATE in roles else [],
            [float_format(form) for form in _listed(storage)],
            clock,
            self._pending,
        )
        wrappers = [module for module in model.modules() if is_fsdp1(module)]
        self._fsdp1 = Fsdp1(wrappers, self._weights, clock)
        self._aliases = {
            **{(site.path, site.name): tuple(site.aliases) for site in sites.parameters},
            **{(site.path, ""): tuple(site.aliases) for site in sites.modules},
        }
        if not (self._activations.sites or self._weights.sites or self._updates.sites):
            raise SpectrumError(
                f"there is nothing to watch: what {', '.join(map(repr, patterns))} matches has no "
                f"{' and no '.join(sorted(roles))}."
            )

    # Results

    @property
    def step(self) -> int:
        """The step that is under way, or the next."""
        return self._clock.step

    @property
    def records(self) -> list[Record]:
        """Everything so far, step by step, also of the step that is under way.

        On other devices than the CPU, tallies stay there until their step ends or this is read.
        """
        return self._records + self._current({})

    @property
    def unseen(self) -> list[Unseen]:
        """What was to be watched and was not seen in a step that has ended, and why.

        * Outputs of modules inside compiled code, because it calls no hooks. What a compiled module
          returns as a whole is seen, if it was compiled before the capture began and the capture is
          of what `torch.compile` returned; a capture of the module behind it sees no outputs.
        * Modules that were not called, or returned no tensor of floats.
        * Outputs and parameters that no gradient reached. Where a module returns a view that is
          then changed in place, autograd forgets the view, and with it its gradient.
        * Weight gradients under compiled autograd, and updates by a compiled `optimizer.step`,
          which call no hooks either.
        * Updates in steps that the optimizer did not take, and of parameters it does not hold.
        * Tensors that are no plain memory of floats: complex, sparse, nested, under `torch.func`.
        """
        return self._notes.all()

    def select(
        self, *, step: int | None = None, role: Role | None = None, pattern: str = "*"
    ) -> list[Record]:
        """Records of one step, of one role, of modules whose path matches the glob.

        Raises:
            SpectrumError: an unknown role.
        """
        if role is not None:
            _check_role(role)
        return [*select(self.records, step=step, role=role, pattern=pattern)]

    def total(
        self, *, step: int | None = None, role: Role | None = None, pattern: str = "*"
    ) -> Spectrum:
        """The sum of the spectra that `select` gives; of none, the empty spectrum."""
        chosen = self.select(step=step, role=role, pattern=pattern)
        return Spectrum.sum(record.spectrum for record in chosen)

    def rows(
        self, *, step: int | None = None, role: Role | None = None, pattern: str = "*"
    ) -> list[tuple[dict[str, str | int], Spectrum]]:
        """What `select` gives as rows for `floatscope.spectrum.storage.write_parquet`.

        Labels are step, module, role, name, calls and aliases (joined by blanks). With
        role="update" they include stuck, stuck_of, moved, and swallowed_<format> for each storage
        format; not otherwise, because all rows of a file have the same.
        """
        chosen = self.select(step=step, role=role, pattern=pattern)
        return [(record.labels(role == UPDATE), record.spectrum) for record in chosen]

    # Control

    def next_step(self) -> None:
        """End the step, unless the optimizer has just ended it: for the end of an iteration."""
        self._clock.next_step()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside it, nothing is measured: for evaluations. An optimizer's steps are counted."""
        before = self._clock.switch(False)
        try:
            yield
        finally:
            self._clock.switch(before)

    # Machinery

    def _open(self, hooks: ExitStack) -> None:
        """Attach everything; `hooks` takes it off again."""
        for part in (self._activations, self._weights, self._fsdp1, self._updates):
            hooks.callback(part.detach)
            part.attach()
        hooks.callback(before_calls(self._model, Called(self._clock.forward)))
        hooks.callback(self._clock.switch, False)
        self._clock.switch(True)

    def _begin(self) -> None:
        """A measured step begins."""
        self._weights.begin()

    def _end(self, has_stepped: bool) -> None:
        """A measured step is over."""
        step = self._clock.step
        self._pending.fetch()
        updates = self._updates.finish(step, self._notes, has_stepped)
        self._activations.finish(step, self._notes)
        self._weights.finish(step, self._notes)
        for (role, path, name), entry in self._pending.entries.items():
            if entry.problem:
                self._notes.add(step, role, path, name, entry.problem)
        self._records += self._current(updates)
        self._pending.clear()

    def _current(self, updates: dict[tuple[str, str], Update]) -> list[Record]:
        """Records of the step under way."""
        self._pending.fetch()
        return [
            Record(
                step=self._clock.step,
                module=path,
                role=role,
                name=name,
                spectrum=entry.spectrum,
                calls=entry.calls,
                aliases=self._aliases.get((path, "" if role in OF_OUTPUTS else name), ()),
                update=updates.get((path, name)) if role == UPDATE else None,
            )
            for (role, path, name), entry in self._pending.entries.items()
            if entry.spectrum is not None and not entry.problem
        ]


def _roles(given: Role | Iterable[Role] | None, optimizer: Optimizer | None) -> set[Role]:
    if given is None:
        return {role for role in ROLES if role != UPDATE or optimizer is not None}
    roles: set[Role] = {given} if isinstance(given, str) else {*given}  # type: ignore[arg-type]
    for role in roles:
        _check_role(role)
    if UPDATE in roles and optimizer is None:
        raise SpectrumError("updates are an optimizer's; pass it as optimizer=.")
    return roles


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise SpectrumError(unknown("role", role, ROLES))


def _whole(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpectrumError(f"{name} must be a whole number from {least} on, not {value!r}.")
    return value


def _check_optimizer(optimizer: Any, sites: list[ParameterSite]) -> None:
    if optimizer is None:
        return
    if not hasattr(optimizer, "register_step_post_hook"):
        raise SpectrumError(
            f"optimizer= takes a torch.optim.Optimizer, and {type(optimizer).__name__} is none. "
            "Of a wrapper, pass the optimizer that it wraps."
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not any(id(site.parameter) in held for site in sites):
        raise SpectrumError(
            "the optimizer holds no parameter of this model. Was it made for another model, or "
            "before this one was sharded or moved?"
        )


def _listed(storage: Format | str | Sequence[Format | str]) -> Sequence[Format | str]:
    return storage if isinstance(storage, (list, tuple)) else [storage]  # type: ignore[list-item]
