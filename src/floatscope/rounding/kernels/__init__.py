"""Kernels of rounding: one file a backend and task; tests hold them to one another bit for bit."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import ModuleType


def checksum(module: ModuleType) -> int:
    """A positive number that changes with a module's source.

    Numba caches a compiled kernel under its own file's time of change and the constants in its
    closure. A kernel that calls one of another file has that file's checksum among them. A kernel
    in the closure has another name in every process, so that its owner would never come from the
    cache: what Python calls has numbers alone there.
    """
    assert module.__file__ is not None
    return zlib.crc32(Path(module.__file__).read_bytes()) | 1
