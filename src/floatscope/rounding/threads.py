"""Kernels side by side on several threads.

Numba's own layers either kill forked workers or abort when two threads call at once. Torch's
threads are the best, because no others have to share their cores; elsewhere it is a thread pool.
Pieces are handed out as threads come free, because another core may be busy: to compiled regions
without the interpreter (`share`), to Python's functions, which let go of its lock, with it
(`spread`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope.rounding import denormals
from floatscope.rounding.jobs import Region
from floatscope.rounding.openmp import run_on_team, run_region

PIECE = 1 << 20
"""Elements a thread takes at a time."""

NOTHING = nullcontext()
Counts = NDArray[np.int64]
Task = Callable[[int, int, Counts], None]
_pool: ThreadPoolExecutor | None = None


def share(region: Region, job: ctypes.Structure) -> Counts:
    """Have a job done, by as many threads as Torch uses if it has several pieces; its counts.

    Every thread computes with subnormal numbers, or leaves the job to others.
    """
    address = ctypes.addressof(job)
    pieces = -(-job.size // job.piece)
    num_threads = 1 if pieces < 2 else min(torch.get_num_threads(), pieces)
    with denormals.kept() if denormals.are_flushed() else NOTHING:
        if num_threads == 1:
            region.call(address)
        elif not run_region(region.address, address, num_threads):
            pool = _threads(num_threads - 1)
            helpers = [pool.submit(region.call, address) for _ in range(num_threads - 1)]
            try:
                region.call(address)
            finally:  # nobody may work on a job that is forgotten
                wait(helpers)
    return np.frombuffer(job.counts, np.int64)


def spread(task: Task, size: int, num_counts: int, piece: int = PIECE) -> Counts:
    """Call task(start, stop, counts) for all pieces of range(size), and add up the counts.

    Long ranges are shared by as many threads as Torch uses. Every thread computes with subnormal
    numbers. If a task raises, so does this, after the other threads have done the rest.
    """
    if size <= piece:
        counts = np.zeros(num_counts, np.int64)
        with denormals.kept() if denormals.are_flushed() else NOTHING:
            if size:
                task(0, size, counts)
        return counts
    pieces = iter(range(0, size, piece))  # next() is atomic under the lock
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
