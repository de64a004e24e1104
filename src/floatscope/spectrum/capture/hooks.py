"""Activations, where modules return them, and the gradients with respect to them.

An output is measured at once, so whatever changes it in place later comes too late. The gradient
of an output is caught by a hook on the tensor, which autograd keeps for the value that the tensor
had then. A module that is called during a backward pass is being recomputed by activation
checkpointing: its outputs were seen before, but with reentrant checkpointing only the recomputed
ones get gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from floatscope.spectrum.capture.attach import Arrived, Returned, after_calls
from floatscope.spectrum.capture.clock import Clock, backward_pass
from floatscope.spectrum.capture.leaves import leaves
from floatscope.spectrum.capture.pending import Key, Pending
from floatscope.spectrum.capture.records import Notes, Role
from floatscope.spectrum.capture.sites import ModuleSite
from floatscope.spectrum.capture.taking import Taken, take

VALUE: Role = "activation"
GRADIENT: Role = "activation_gradient"
OF_OUTPUTS: tuple[Role, ...] = (VALUE, GRADIENT)


class Activations:
    """Watches what modules return.

    Args:
        sites: the modules.
        roles: what is wanted of them.
        clock: the steps.
        pending: where spectra go.
    """

    def __init__(
        self, sites: list[ModuleSite], roles: set[Role], clock: Clock, pending: Pending
    ) -> None:
        self._roles: list[Role] = [role for role in OF_OUTPUTS if role in roles]
        self._wants_values, self._wants_gradients = VALUE in roles, GRADIENT in roles
        self.sites = [site for site in sites if self._roles and site.is_called]
        self._clock, self._pending = clock, pending
        self._removals: list[Callable[[], None]] = []
        self._reset()

    def _reset(self) -> None:
        self._called: set[str] = set()
        self._returned: dict[tuple[str, str], bool] = {}  # output: is a gradient expected?
        self._problems: dict[Key, str] = {}
        self._handles: list[RemovableHandle] = []
        self._latest: _Latest | None = None

    def attach(self) -> None:
        for site in self.sites:
            if site.compiled_in is None:
                hook = Returned(self.returned, site.path)
                self._removals.append(after_calls(site.module, hook))

    def detach(self) -> None:
        for remove in self._removals:
            remove()
        self._removals.clear()
        self._drop_handles()

    def returned(self, path: str, output: Any) -> None:
        """A module returned something."""
        is_recomputed = backward_pass() != -1
        is_watching = self._clock.is_watching if is_recomputed else self._clock.forward()
        if not is_watching:
            return
        self._called.add(path)
        for name, tensor in leaves(output):
            if tensor.is_floating_point() or tensor.is_complex():
                self._one(path, name, tensor, is_recomputed)

    def _one(self, path: str, name: str, tensor: Tensor, is_recomputed: bool) -> None:
        latest = self._latest
        if latest is None or not latest.is_still(tensor):
            latest = self._latest = _Latest(tensor)
        if not is_recomputed:
            self._returned.setdefault((path, name), False)
            if self._wants_values:
                if latest.taken is None:
                    latest.taken = take(tensor)
                self._put((VALUE, path, name), latest.taken)
        if self._wants_gradients and tensor.requires_grad:
            if not is_recomputed:
                self._returned[path, name] = True
            if latest.arrived is None:
                latest.arrived = Arrived(self.arrived)
                self._handles.append(tensor.register_hook(latest.arrived))
            latest.arrived.keys.append((GRADIENT, path, name))

    def arrived(self, keys: list[Key], gradient: Tensor | None) -> None:
        """The gradient of an output arrived."""
        scale = self._clock.backward()
        if scale is None or gradient is None:
            return
        taken = take(gradient, scale)
        for key in keys:
            self._put(key, taken, scale)

    def _put(self, key: Key, taken: Taken | str, *scale: Any) -> None:
        if isinstance(taken, str):
            self._problems[key] = taken
        else:
            self._pending.add(key, taken, *scale)

    def finish(self, step: int, notes: Notes) -> None:
        """The step is over: say what was not seen in it, and forget it."""
        for (role, path, name), problem in self._problems.items():
            notes.add(step, role, path, name, problem)
        if self._wants_gradients:
            for (path, name), was_expected in self._returned.items():
                key = GRADIENT, path, name
                if key not in self._pending.entries and key not in self._problems:
                    reason = NO_GRADIENT if was_expected else NEEDS_NONE
                    notes.add(step, GRADIENT, path, name, reason)
        reported = {path for path, _ in self._returned}
        for site in self.sites:
            if site.path not in reported:
                reason = NO_TENSOR if site.path in self._called else self._why_not_called(site)
                for role in self._roles:
                    notes.add(step, role, site.path, "", reason)
        self._drop_handles()
        self._reset()

    def _why_not_called(self, site: ModuleSite) -> str:
        if site.compiled_in is None:
            return NOT_CALLED
        where = repr(site.compiled_in) if site.compiled_in else "the model"
        return f"it is compiled as a part of {where}, and compiled code calls no hooks"

    def _drop_handles(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


NO_TENSOR = "it returned no tensor of floats"
NOT_CALLED = "it was not called, or only by compiled code"
NEEDS_NONE = "its output needs no gradient"
NO_GRADIENT = (
    "no gradient reached its output: nothing that was differentiated depends on it, or it is a "
    "view that was changed in place"
)


class _Latest:
    """The tensor that was seen last. A module often returns what its last child returned."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = weakref.ref(tensor)
        self._version = None if tensor.is_inference() else tensor._version
        self.taken: Taken | str | None = None
        self.arrived: Arrived | None = None

    def is_still(self, tensor: Tensor) -> bool:
        """Whether it is this one, and unchanged. Inference tensors do not tell."""
        is_same = self._tensor() is tensor and self._version is not None
        return is_same and tensor._version == self._version
