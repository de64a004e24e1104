"""Kernels side by side on several threads.

The kernels release the interpreter lock, so plain threads suffice: Numba's own layers either kill
forked workers or abort when two threads call at once. Torch's threads are the best, because no
others have to share their cores; elsewhere it is a thread pool. Pieces are handed out as threads
come free, because another core may be busy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope.rounding import denormals
from floatscope.rounding.openmp import run_on_team

PIECE = 1 << 20
"""Elements a thread takes at a time."""

NOTHING = nullcontext()
Counts = NDArray[np.int64]
Task = Callable[[int, int, Counts], None]
_pool: ThreadPoolExecutor | None = None


def spread(
    task: Task, size: int, num_counts: int, piece: int = PIECE, *, backwards: bool = False
) -> Counts:
    """Call task(start, stop, counts) for all pieces of range(size), and add up the counts.

    Long ranges are shared by as many threads as Torch uses. Every thread computes with subnormal
    numbers. If a task raises, so does this, after the other threads have done the rest.

    `backwards`, from the last piece to the first, is for a second look at data: what was read last
    is in the cache yet.
    """
    if size <= piece:
        counts = np.zeros(num_counts, np.int64)
        with denormals.kept() if denormals.are_flushed() else NOTHING:
            if size:
                task(0, size, counts)
        return counts
    starts = range(0, size, piece)
    pieces = iter(starts[::-1] if backwards else starts)  # next() is atomic under the lock
    found: list[Counts] = []
    raised: list[BaseException] = []

    def work() -> None:
        counts = np.zeros(num_counts, np.int64)
        try:
            with denormals.kept() if denormals.are_flushed() else NOTHING:
                for start in pieces:
                    task(start, min(start + piece, size), counts)
        except BaseException as error:
            raised.append(error)
        found.append(counts)

    num_threads = min(torch.get_num_threads(), -(-size // piece))
    if num_threads == 1:
        work()
    elif not run_on_team(work, num_threads):
        helpers = [_threads(num_threads - 1).submit(work) for _ in range(num_threads - 1)]
        work()
        for helper in helpers:
            helper.result()
    if raised:
        raise raised[0]
    return sum(found, np.zeros(num_counts, np.int64))


def _threads(wanted: int) -> ThreadPoolExecutor:
    global _pool
    if _pool is None or _pool._max_workers < wanted:
        _pool = ThreadPoolExecutor(wanted, thread_name_prefix="floatscope")
    return _pool


def _forget() -> None:
    """A forked child has the pool but not its threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
