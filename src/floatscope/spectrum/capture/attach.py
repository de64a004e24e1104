"""Hooks that leave compiled code alone.

Compiled code traces the hooks of the modules in it. For Dynamo the answer of `is_compiling()` is a
constant, so nothing remains of these hooks in its graphs: no breaks, no other fusions, no other
values. Outside they are called. A compiled module as a whole is called from outside, so what it
returns can be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from floatscope.spectrum.capture.pending import Key
from floatscope.spectrum.capture.sites import is_optimized

Removal = Callable[[], None]


class Hook:
    """A hook of ours. A copy of a model, or a stored one, is not watched: its hooks do nothing."""

    __torch_unserializable__ = True  # Torch need not warn that it does not store this

    def __reduce__(self) -> tuple[Any, ...]:
        return Nothing, ()


class Nothing:
    """What a copied model has in a hook's place."""

    def __call__(self, *args: Any) -> None:
        """Do nothing."""


class Called(Hook):
    """A hook before a module is called."""

    def __init__(self, tell: Callable[[], Any]) -> None:
        self.tell = tell

    def __call__(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self.tell()


class Returned(Hook):
    """A hook after a module has been called."""

    def __init__(self, tell: Callable[[str, Any], None], path: str) -> None:
        self.tell, self.path = tell, path

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self.tell(self.path, output)


class Arrived(Hook):
    """A hook for the gradient with respect to a tensor that was returned under `keys`."""

    def __init__(self, tell: Callable[[list[Key], Tensor | None], None]) -> None:
        self.tell = tell
        self.keys: list[Key] = []

    def __call__(self, gradient: Tensor | None) -> None:
        if torch.compiler.is_compiling():
            return
        self.tell(self.keys, gradient)


class Accumulated(Hook):
    """A hook after a parameter's gradient has been accumulated."""

    def __init__(self, tell: Callable[[Any], None], site: Any) -> None:
        self.tell, self.site = tell, site

    def __call__(self, parameter: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        self.tell(self.site)


def before_calls(module: nn.Module, hook: Called) -> Removal:
    """Call `hook` before each call of a module and before its other hooks; returns the removal."""
    if is_outside(module):
        return module.register_forward_pre_hook(hook, prepend=True).remove
    return _around(module, hook, None)


def after_calls(module: nn.Module, hook: Returned) -> Removal:
    """Call `hook` after each call of a module; returns the removal."""
    if is_outside(module):
        return module.register_forward_hook(hook).remove
    return _around(module, None, hook)


def is_outside(module: nn.Module) -> bool:
    """Whether a module's own hooks are called from outside of its compiled code, if it has any."""
    return is_optimized(module) or module._compiled_call_impl is None


def _around(module: nn.Module, before: Called | None, after: Returned | None) -> Removal:
    """Hooks for a module after `module.compile()`, which compiles its call, hooks included."""
    inner = module._compiled_call_impl
    assert inner is not None
    outer = _Around(module, inner, before, after)
    module._compiled_call_impl = outer

    def remove() -> None:
        outer.before = outer.after = None  # for the case that someone else wrapped it again
        if module._compiled_call_impl is outer:
            module._compiled_call_impl = inner

    return remove


class _Around:
    """Stands for a module's compiled call."""

    def __init__(
        self,
        module: nn.Module,
        inner: Callable[..., Any],
        before: Called | None,
        after: Returned | None,
    ) -> None:
        self.module, self.inner, self.before, self.after = module, inner, before, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.before is not None:
            self.before(self.module, args)
        output = self.inner(*args, **kwargs)
        if self.after is not None:
            self.after(self.module, args, output)
        return output
