"""Numba's decorators, with a cache of compiled code that several processes may fill at once.

Numba's own is not made for that, where one function makes kernels that differ in a constant. It
numbers the files of a name's versions in an index, which two processes overwrite for each other,
and it tells symbols of one name apart by the order in which a process met them. So a kernel could
be loaded in another's place, and round wrongly without a word.

Here every kernel has a name of its own, which its constants are a part of, and a file's name
follows from all that it was compiled from: signature, processor, and the sources of the kernel's
room and of rounding, which all kernels build on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import sigutils
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc

ROOT = Path(__file__).parent
SHARED = "rounding"


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit`, cached."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(_named(function))
        dispatcher._cache = _Cache(function)  # type: ignore[attr-defined]
        return dispatcher

    return decorate


def cfunc(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], CFunc]:
    """`numba.cfunc`, cached: compiled at once."""

    def decorate(function: Callable[..., Any]) -> CFunc:
        types = sigutils.normalize_signature(signature)
        compiled = CFunc(_named(function), types, locals={}, options=options)
        compiled._cache = _Cache(function)  # type: ignore[attr-defined]
        compiled.compile()
        return compiled

    return decorate


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the constants that it was made with in its name."""
    cells = function.__closure__ or ()
    if cells:
        constants = _digest(_said(cell.cell_contents) for cell in cells)
        function.__qualname__ += f"_{constants[:12]}"
    return function


def _said(constant: Any) -> str:
    kernel = getattr(constant, "py_func", None)
    return repr(constant) if kernel is None else f"{kernel.__module__}.{kernel.__qualname__}"


class _Cache(FunctionCache):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        path = Path(function.__code__.co_filename)
        inside = path.is_relative_to(ROOT)
        room = path.relative_to(ROOT).parts[0] if inside else SHARED
        sources = _digest((_sources(room), "" if inside else path.read_text(encoding="utf-8")))
        name = f"{self._impl.filename_base}.{sources[:12]}"
        self._cache_file = _Files(self._cache_path, name, sources)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return _digest((repr(sig), repr(codegen.magic_tuple()), numba.__version__))


class _Files(IndexDataCacheFile):
    """Files by the key of their content, without an index."""

    def load(self, key: str) -> Any:
        try:
            return self._load_data(self._name(key))
        except FileNotFoundError:
            return None

    def save(self, key: str, data: Any) -> None:
        self._save_data(self._name(key), data)

    def flush(self) -> None:
        """Nothing: what was compiled from the same is the same."""

    def _name(self, key: str) -> str:
        return self._data_name_pattern.format(number=int(key[:15], 16))


@cache
def _sources(room: str) -> str:
    """A digest of the modules of a room and of the one that all kernels build on."""
    paths = {Path(__file__), *(ROOT / room).rglob("*.py"), *(ROOT / SHARED).rglob("*.py")}
    return _digest(f"{path}\n{path.read_text(encoding='utf-8')}" for path in sorted(paths))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
