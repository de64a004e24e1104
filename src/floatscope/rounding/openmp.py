"""The threads that Torch's own operations run on, where they are OpenMP's.

They spin for some milliseconds after each operation, ready for the next. Other threads would have
to share their cores meanwhile; these take up a piece of work at once. Torch for Linux brings GNU's
OpenMP, whose entry point for a parallel region is that of compiled code (libgomp, "Implementing
PARALLEL construct"). Where it is missing, and in a forked child, which does not have the threads of
its parent, there is no team.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

_Region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_is_child = False


def run_region(region: int, job: int, num_threads: int) -> bool:
    """Call a compiled function of one address on each of so many threads, without the interpreter.

    Returns:
        Whether there is a team; if not, nothing was called.
    """
    parallel = None if _is_child else _parallel()
    if parallel is None:
        return False
    parallel(region, job, num_threads, 0)
    return True


def run_on_team(work: Callable[[], object], num_threads: int) -> bool:
    """Call `work` on each of so many threads, this one among them; returns when all have ended.

    The calls hold the interpreter lock, except where they let go of it. `work` must not raise:
    nobody would see what.

    Returns:
        Whether there is a team; if not, nothing was called.
    """
    region = _Region(lambda _: work() and None)
    return run_region(ctypes.cast(region, ctypes.c_void_p).value or 0, 0, num_threads)


@cache
def _parallel() -> Callable[..., None] | None:
    """GOMP_parallel of the library that Torch has loaded; wheels have it in either folder."""
    root = Path(torch.__file__).parent
    for path in (*root.glob("lib/libgomp*.so*"), *root.parent.glob("torch.libs/libgomp*.so*")):
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:  # not the one in use
            continue
        parallel = library.GOMP_parallel
        parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        parallel.restype = None
        return parallel
    return None


def _forget() -> None:
    global _is_child
    _is_child = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
