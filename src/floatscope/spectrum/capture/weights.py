"""Weights as a step finds them, and their gradients as backward passes leave them.

A gradient is measured at the end of each backward pass that added to it, before `backward()`
returns, so before anyone unscales, clips or clears it. What the last pass of a step left is the
step's weight gradient.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.autograd.variable import Variable
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from floatscope.spectrum.capture.attach import Accumulated
from floatscope.spectrum.capture.clock import Clock, backward_pass
from floatscope.spectrum.capture.pending import Key, Pending
from floatscope.spectrum.capture.records import Notes, Role
from floatscope.spectrum.capture.scales import Scale
from floatscope.spectrum.capture.sites import ParameterSite
from floatscope.spectrum.capture.taking import take

VALUE: Role = "weight"
GRADIENT: Role = "weight_gradient"


class Weights:
    """Watches parameters.

    Args:
        sites: the parameters to report.
        everything: all of the model's. Their gradients tell the clock that a backward pass runs.
        roles: what is wanted of them.
        clock: the steps.
        pending: where spectra go.
    """

    def __init__(
        self,
        sites: list[ParameterSite],
        everything: list[ParameterSite],
        roles: set[Role],
        clock: Clock,
        pending: Pending,
    ) -> None:
        self._wants_values, self._wants_gradients = VALUE in roles, GRADIENT in roles
        self.sites = sites if self._wants_values or self._wants_gradients else []
        self._everything = everything
        self._reported = {id(site) for site in sites} if self._wants_gradients else set()
        self._clock, self._pending = clock, pending
        self._handles: dict[int, RemovableHandle] = {}
        self._waiting: dict[int, list[ParameterSite]] = {}  # by backward pass
        self._problems: dict[Key, str] = {}

    def attach(self) -> None:
        """Hook every parameter that can have a gradient and has no hook yet."""
        for site in self._everything:
            parameter = site.parameter
            has_hook = id(site) in self._handles or site.is_in_fsdp1  # for those see `fsdp1.py`
            if not has_hook and not is_lazy(parameter) and parameter.requires_grad:
                hook = Accumulated(self._accumulated, site)
                self._handles[id(site)] = parameter.register_post_accumulate_grad_hook(hook)

    def detach(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def begin(self) -> None:
        """A measured step begins."""
        self.attach()  # parameters may have been unfrozen
        if self._wants_values:
            for site in self.sites:
                key = VALUE, site.path, site.name
                taken = take(site.parameter)
                if isinstance(taken, str):
                    self._problems[key] = taken
                else:
                    self._pending.add(key, taken)

    def _accumulated(self, site: ParameterSite) -> None:
        """A backward pass adds to a parameter's gradient."""
        scale = self._clock.backward()
        if scale is None or id(site) not in self._reported:
            return
        this = backward_pass()
        if this not in self._waiting:
            self._waiting[this] = []
            at_the_end_of_the_pass(lambda: self._passed(this, scale))
        self._waiting[this].append(site)

    def _passed(self, this: int, scale: Scale) -> None:
        """A backward pass is over. If its step is too, nothing waits for it anymore."""
        for site in {id(site): site for site in self._waiting.pop(this, [])}.values():
            self._measure(site, scale)

    def written_by_fsdp1(self, scale: Scale | None) -> None:
        """A backward pass is over in which `FullyShardedDataParallel` wrote gradients."""
        for site in self.sites:
            has_gradient = site.is_in_fsdp1 and site.parameter.grad is not None
            if has_gradient and scale is not None and id(site) in self._reported:
                self._measure(site, scale)

    def _measure(self, site: ParameterSite, scale: Scale) -> None:
        key = GRADIENT, site.path, site.name
        self._problems.pop(key, None)
        gradient = site.parameter.grad
        taken = TAKEN_AWAY if gradient is None else take(gradient, scale)
        if isinstance(taken, str):
            self._problems[key] = taken
            self._pending.entries.pop(key, None)  # what an earlier pass left is no longer there
        else:
            self._pending.add(key, taken, scale, instead=True)

    def finish(self, step: int, notes: Notes) -> None:
        """The step is over: say what was not seen in it, and forget it."""
        for (role, path, name), problem in self._problems.items():
            notes.add(step, role, path, name, problem)
        for site in self.sites if self._wants_gradients else []:
            key = GRADIENT, site.path, site.name
            if key not in self._pending.entries and key not in self._problems:
                notes.add(step, GRADIENT, site.path, site.name, self._why_none(site))
        self._problems.clear()
        self._waiting.clear()

    def _why_none(self, site: ParameterSite) -> str:
        if is_lazy(site.parameter) or not site.parameter.requires_grad:
            return LAZY if is_lazy(site.parameter) else FROZEN
        if not site.parameter.numel():
            return EMPTY
        return NO_GRADIENT if id(site) in self._handles or site.is_in_fsdp1 else LATE


LAZY = "it was not initialized yet"
LATE = "it was initialized, or began to need a gradient, after the step had begun"
EMPTY = "it has no elements, or none of them are in this process"
FROZEN = "it is frozen: requires_grad is False"
NO_GRADIENT = "no backward pass gave it a gradient, or compiled autograd did, which calls no hooks"
TAKEN_AWAY = "a hook had taken its gradient away before the backward pass was over"


def at_the_end_of_the_pass(callback: Callable[[], None]) -> None:
    """Have the backward pass that is running call something when all else is done.

    The autograd engine runs callbacks in the order in which they were queued, and they may queue
    more. One that was queued by another comes last: after those in which `DistributedDataParallel`
    and both kinds of FSDP put reduced gradients in place.
    """
    if backward_pass() == -1:  # someone calls a tensor's hooks by hand
        callback()
        return
    engine = Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(callback))
