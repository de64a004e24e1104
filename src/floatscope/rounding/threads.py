"""Kernels side by side on a thread pool.

The kernels release the interpreter lock, so plain threads suffice: Numba's own layers either kill
forked workers or abort when two threads call at once. Pieces are handed out as threads come free,
because the other core may be busy: PyTorch's own threads spin for a while after each operation.
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

PIECE = 1 << 20
"""Elements a thread takes at a time."""

NOTHING = nullcontext()
Counts = NDArray[np.int64]
Task = Callable[[int, int, Counts], None]
_pool: ThreadPoolExecutor | None = None


def spread(task: Task, size: int, num_counts: int, piece: int = PIECE) -> Counts:
    """Call task(start, stop, counts) for all pieces of range(size), and add up the counts.

    Long ranges are shared by as many threads as Torch uses. Every thread computes with subnormal
    numbers. If a task raises, so does this, after the other threads have finished.
    """
    if size <= piece:
        counts = np.zeros(num_counts, np.int64)
        with denormals.kept() if denormals.are_flushed() else NOTHING:
            if size:
                task(0, size, counts)
        return counts
    pieces = iter(range(0, size, piece))  # next() on it is atomic under the interpreter lock

    def work() -> Counts:
        counts = np.zeros(num_counts, np.int64)
        with denormals.kept() if denormals.are_flushed() else NOTHING:
            for start in pieces:
                task(start, min(start + piece, size), counts)
        return counts

    num_helpers = min(torch.get_num_threads(), -(-size // piece)) - 1
    helpers = [_threads(num_helpers).submit(work) for _ in range(num_helpers)]
    try:
        counts = work()
    finally:
        others = [helper.result() for helper in helpers]
    return sum(others, counts)


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
