"""Which modules and parameters of a model are watched, and under which names."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from floatscope.errors import SpectrumError

WRAPPERS = re.compile(r"(?:^|\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\b")
"""Names that torch.compile, FSDP and checkpoint wrappers put into paths; left out of ours."""


@dataclass
class ModuleSite:
    """A module, however often it occurs in the model."""

    module: nn.Module
    path: str
    """Its first; "" is the model itself."""
    aliases: list[str] = field(default_factory=list)
    compiled_in: str | None = None
    """Path of the compiled module that it is a part of, wherever it occurs."""

    @property
    def is_called(self) -> bool:
        """Whether it has a forward; a `ModuleList` has none."""
        forward = getattr(self.module, "forward", None)
        return getattr(forward, "__func__", forward) is not nn.Module.forward


@dataclass
class ParameterSite:
    """A parameter, however many names it has."""

    parameter: nn.Parameter
    path: str
    """Of the module that owns it, first."""
    name: str
    aliases: list[str] = field(default_factory=list)
    """Its other full names."""
    is_in_fsdp1: bool = False
    """Whether `FullyShardedDataParallel` writes its gradient, behind autograd's back."""


@dataclass
class Sites:
    """What a model consists of, or what of it is watched. Paths are without wrappers' names."""

    modules: list[ModuleSite]
    parameters: list[ParameterSite]


def sites_of(model: nn.Module) -> Sites:
    """All modules and parameters, in the model's order.

    Of a wrapper and what it wraps, which have the same path, only the wrapper is a site.
    """
    modules: dict[int, ModuleSite] = {}
    parameters: dict[int, ParameterSite] = {}
    owners: dict[str, int] = {}
    surroundings: dict[str, tuple[str | None, bool]] = {}  # what holds for the children
    for raw, module in model.named_modules(remove_duplicate=False):
        path = WRAPPERS.sub("", raw).lstrip(".")
        compiled_in, in_fsdp1 = surroundings.get(raw.rpartition(".")[0], (None, False))
        inside = compiled_in if compiled_in is not None else path if is_compiled(module) else None
        in_fsdp1 = in_fsdp1 or is_fsdp1(module)
        surroundings[raw] = inside, in_fsdp1
        if owners.setdefault(path, id(module)) == id(module):
            site = modules.setdefault(id(module), ModuleSite(module, path, [], compiled_in))
            if site.path != path:
                site.aliases.append(path)
                site.compiled_in = None if compiled_in is None else site.compiled_in
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            known = parameters.setdefault(
                id(parameter), ParameterSite(parameter, path, name, [], in_fsdp1)
            )
            if (known.path, known.name) != (path, name):
                known.aliases.append(f"{path}.{name}" if path else name)
    return Sites([*modules.values()], [*parameters.values()])


def chosen(sites: Sites, patterns: Iterable[str]) -> Sites:
    """The sites that a pattern matches: modules by a path, parameters by their owner's path.

    Raises:
        SpectrumError: a pattern matches no module.
    """
    patterns = list(patterns)
    paths = [path for site in sites.modules for path in (site.path, *site.aliases)]
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise SpectrumError(f"no module's path matches {pattern!r}. {_near(pattern, paths)}")

    def match(paths: Iterable[str]) -> bool:
        return any(fnmatchcase(path, pattern) for path in paths for pattern in patterns)

    def owners(site: ParameterSite) -> list[str]:
        return [site.path, *(alias.rpartition(".")[0] for alias in site.aliases)]

    return Sites(
        [site for site in sites.modules if match((site.path, *site.aliases))],
        [site for site in sites.parameters if match(owners(site))],
    )


def _near(pattern: str, paths: list[str]) -> str:
    named = [path for path in paths if path]
    if not named:
        return 'This model has no submodules; "*" matches itself.'
    # numbered siblings are offered once
    shapes = dict.fromkeys(re.sub(r"\b\d+\b", "*", path) for path in named)
    near = difflib.get_close_matches(pattern, [*shapes, *named], n=3, cutoff=0.5)
    if near:
        return f"Did you mean {' or '.join(repr(path) for path in near)}?"
    return f"Among its modules are {', '.join(repr(shape) for shape in [*shapes][:8])}."


def is_compiled(module: nn.Module) -> bool:
    """Whether calls of this module, as it stands, run compiled code."""
    return is_optimized(module) or module._compiled_call_impl is not None


def is_optimized(module: nn.Module) -> bool:
    """Whether it is what `torch.compile(module)` returned."""
    return _is_a(module, "torch._dynamo.eval_frame", "OptimizedModule")


def is_fsdp1(module: nn.Module) -> bool:
    """Whether it is a `FullyShardedDataParallel`."""
    return _is_a(module, "torch.distributed.fsdp", "FullyShardedDataParallel")


def _is_a(module: nn.Module, home: str, name: str) -> bool:
    """Whether it is of that class, without importing what takes long and may not be in use."""
    kind: Any = getattr(sys.modules.get(home), name, None)
    return kind is not None and isinstance(module, kind)
