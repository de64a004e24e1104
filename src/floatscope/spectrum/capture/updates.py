"""Updates: what an optimizer's step did to the weights, and what storage would lose of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from floatscope.formats import FloatFormat
from floatscope.rounding.rules import Rules, rules_for
from floatscope.rounding.tensors import round_to
from floatscope.spectrum.capture.clock import Clock
from floatscope.spectrum.capture.differences import Differences
from floatscope.spectrum.capture.pending import Pending
from floatscope.spectrum.capture.records import Notes, Role, Update
from floatscope.spectrum.capture.sites import ParameterSite
from floatscope.spectrum.capture.taking import fetched, local, obstacle, undisturbed
from floatscope.spectrum.predict import Share

UPDATE: Role = "update"


@dataclass
class _Snapshot:
    """A parameter before the optimizer's step."""

    site: ParameterSite
    before: Tensor
    has_gradient: Tensor | None
    """Where the gradient is not zero; None if there is none."""


class Updates:
    """Watches an optimizer.

    Args:
        optimizer: of the parameters; None if there is none.
        sites: the parameters to report; empty to watch for the optimizer's steps only.
        storage: formats whose swallowed updates are counted.
        clock: the steps.
        pending: where spectra go.
    """

    def __init__(
        self,
        optimizer: Optimizer | None,
        sites: list[ParameterSite],
        storage: Sequence[FloatFormat],
        clock: Clock,
        pending: Pending,
    ) -> None:
        self._optimizer = optimizer
        self._storage = {form: _rules(form) for form in storage}
        self.sites = sites
        self._clock, self._pending = clock, pending
        self._handles: list[RemovableHandle] = []
        self._snapshots: list[_Snapshot] = []
        self._found_inf: Tensor | None = None
        self._counts: dict[tuple[str, str], Tensor] = {}
        self._problems: dict[tuple[str, str], str] = {}

    def attach(self) -> None:
        if self._optimizer is not None:
            self._handles = [
                self._optimizer.register_step_pre_hook(self._before),
                self._optimizer.register_step_post_hook(self._after),
            ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._snapshots.clear()

    def held(self) -> set[int]:
        """Ids of what the optimizer holds; groups may have been added."""
        groups = self._optimizer.param_groups if self._optimizer is not None else []
        return {id(parameter) for group in groups for parameter in group["params"]}

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or _is_inside(optimizer):
            return
        self._snapshots.clear()
        if not self._clock.touch() or not self.sites:
            return
        # Fused optimizers are called for skipped steps too, and told so with this.
        found_inf = getattr(optimizer, "found_inf", None)
        self._found_inf = found_inf.clone() if isinstance(found_inf, Tensor) else None
        # A closure makes the gradient only now. The first of args is the optimizer.
        has_closure = any(callable(given) for given in (*args[1:], kwargs.get("closure")))
        held = self.held()
        with undisturbed():
            for site in self.sites:
                problem = obstacle(site.parameter) if id(site.parameter) in held else NOT_HELD
                if problem:
                    self._problems[site.path, site.name] = problem
                    continue
                gradient = None if has_closure else site.parameter.grad
                self._snapshots.append(
                    _Snapshot(site, local(site.parameter).clone(), _nonzero(gradient))
                )

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or _is_inside(optimizer):
            return
        with undisturbed():
            while self._snapshots:
                self._compare(self._snapshots.pop(0))
        self._clock.stepped()

    def _compare(self, snapshot: _Snapshot) -> None:
        site = snapshot.site
        has_gradient = snapshot.has_gradient
        if has_gradient is None:  # the closure made it, or there is none
            has_gradient = _nonzero(site.parameter.grad)
        before = snapshot.before.reshape(-1)
        after = local(site.parameter).reshape(-1)
        mask = has_gradient.reshape(-1) if has_gradient is not None else None
        differences = Differences(before)
        total = torch.zeros(3 + len(self._storage), dtype=torch.int64, device=before.device)
        for part in differences.parts():
            old = before[part].double()
            update = after[part].double() - old
            total += self._count(old, update, mask[part] if mask is not None else None)
            differences.add(part, update)
        key = UPDATE, site.path, site.name
        for number, taken in enumerate(differences.taken()):
            self._pending.add(key, taken, calls=int(number == 0))
        self._counts[site.path, site.name] = total

    def _count(self, old: Tensor, update: Tensor, has_gradient: Tensor | None) -> Tensor:
        """Stuck elements, those with a gradient, those that moved, and swallowed ones by format."""
        num = torch.count_nonzero
        moved = update != 0
        none = torch.zeros((), dtype=torch.int64, device=old.device)
        stuck, of = none, none
        if has_gradient is not None:
            stuck, of = num(has_gradient & ~moved), num(has_gradient)
        swallowed = []
        is_number = moved & (update == update)  # formats without NaN make something else of it
        for form, rules in self._storage.items():
            stored = round_to(old, form, rules)
            new = round_to(stored + update, form, rules)
            swallowed.append(num(is_number & (new == stored)))
        return torch.stack([stuck, of, num(moved), *swallowed])

    def finish(self, step: int, notes: Notes, has_stepped: bool) -> dict[tuple[str, str], Update]:
        """The step is over: the numbers of updates by module path and name."""
        if self.sites and not has_stepped:
            notes.add(step, UPDATE, "", "", NO_STEP)
        for (path, name), problem in self._problems.items():
            notes.add(step, UPDATE, path, name, problem)
        counts, self._counts = self._counts, {}
        self._problems.clear()
        if self._found_inf is not None and counts and bool(self._found_inf.item()):
            notes.add(step, UPDATE, "", "", WITHHELD)
            for path, name in counts:
                del self._pending.entries[UPDATE, path, name]
            return {}
        totals = fetched([*counts.values()])
        return {k: self._numbers(n.tolist()) for k, n in zip(counts, totals, strict=True)}

    def _numbers(self, counts: list[int]) -> Update:
        stuck, of, moved, *swallowed = counts
        return Update(
            moved=moved,
            stuck=Share(stuck, of),
            swallowed={
                form.name: Share(count, moved)
                for form, count in zip(self._storage, swallowed, strict=True)
            },
        )


NO_STEP = "the optimizer did not step, or only in compiled code"
WITHHELD = "the optimizer was called and withheld its step, because gradients were not finite"
NOT_HELD = "the optimizer does not hold it"


def _is_inside(optimizer: Optimizer) -> bool:
    """Whether the step that calls a hook was called by another step of the same optimizer.

    Torch wraps `step` of each class, so hooks are called twice where a subclass calls
    `super().step()`. The outer call is the step. Counting calls would not do, because there is no
    hook after a step that raises.
    """
    caller = sys._getframe(2)
    outer = caller.f_back
    while outer is not None:
        if outer.f_code is caller.f_code and any(v is optimizer for v in outer.f_locals.values()):
            return True
        outer = outer.f_back
    return False


def _rules(form: FloatFormat) -> Rules:
    """The standard's, to nearest with ties to even; no weight is an error."""
    rules = replace(rules_for(form), rounding="nearest-even")
    return rules if form.has_nan else replace(rules, nan="zero")


def _nonzero(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    gradient = local(gradient)
    return (gradient if gradient.layout is torch.strided else gradient.to_dense()) != 0
