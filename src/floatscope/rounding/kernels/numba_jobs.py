"""The kernels of rounding as regions: what each thread does with a job.

bf16 is widened to fp32, rounded and narrowed again by pieces that stay in the cache; the result is
rounded to bf16 to nearest, ties to even, which changes nothing if bf16 holds the format.
"""

# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportPrivateImportUsage=false

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray

from floatscope.compiled import cfunc, njit
from floatscope.rounding.grid import INDEX
from floatscope.rounding.jobs import COUNTED, Amax, Region, Span, Strips
from floatscope.rounding.kernels.numba_amax import amax_of, finite_amax_of
from floatscope.rounding.kernels.numba_bf16 import narrow, widen
from floatscope.rounding.kernels.numba_blocks import round_strips
from floatscope.rounding.kernels.numba_codes import encode_span
from floatscope.rounding.kernels.numba_elements import round_span
from floatscope.rounding.kernels.numba_hadamard import turn_rows, turning_rooms
from floatscope.rounding.kernels.numba_powers import round_powers
from floatscope.rounding.kernels.numba_region import (
    REGION,
    add_counts,
    flushes,
    pointer,
    raise_to,
    take,
)
from floatscope.rounding.receipt import NUM_COUNTS

PIECE = 1 << 14
"""Elements between the casts from bf16 and to it."""
GRID = len(INDEX)

SPAN, STRIPS, AMAX = np.dtype(Span), np.dtype(Strips), np.dtype(Amax)
u16, u32, u64, f32, f64 = np.uint16, np.uint32, np.uint64, np.float32, np.float64


def _span(kernel: Any, given: Any, wanted: Any, narrows: bool) -> Any:
    """A region of elements, for a kernel with the arguments of `round_span`."""
    widens = given is u16

    @cfunc(REGION)
    def span(p):
        job = carray(p, 1, SPAN)[0]
        if flushes(job.one):
            return
        x, out = carray(pointer(job.x, given), job.size), carray(pointer(job.out, wanted), job.size)
        g, counts = carray(pointer(job.grid, u64), GRID), np.zeros(NUM_COUNTS, np.int64)
        step = PIECE if widens or narrows else job.piece
        wide = np.empty(step if widens else 0, u32)
        room = np.empty(step if narrows else 0, u32)
        start = take(p) * job.piece
        while start < job.size:
            stop = min(start + job.piece, job.size)
            for first in range(start, stop, step):
                last = min(first + step, stop)
                xs = widen(x[first:last], wide) if widens else x[first:last]
                ys = room[: last - first] if narrows else out[first:last]
                xs = xs.copy() if job.shared and not widens else xs
                at = u64(job.offset + u64(first))
                kernel(xs, ys, at, g, job.key, job.spare, job.stream, counts, job.counted)
                if narrows:
                    narrow(ys, out[first:last])
            start = take(p) * job.piece
        add_counts(p, counts)

    return span


def _source(widens: bool, turns: bool) -> Any:
    @njit(nogil=True, error_model="numpy")
    def source(x, wide, columns, signs, factor, rooms, shared):
        """What is rounded, in the bits of fp32: x, or what room there is for it, filled."""
        if turns:
            return turn_rows(x, columns, signs, factor, wide, rooms)
        if widens:
            return widen(x, wide)
        return x.copy() if shared else x

    return source


def _strips(given: Any, wanted: Any, turns: bool) -> Any:
    widens, narrows = given is u16, wanted is u16
    converts, source = widens or narrows or turns, _source(widens, turns)

    @cfunc(REGION, error_model="numpy")
    def strips(p):
        job = carray(p, 1, STRIPS)[0]
        if flushes(job.one):
            return
        height, width, columns = job.height, job.width, job.columns
        whole, size = height * columns, job.rows * columns
        per_strip = (columns + width - 1) // width
        x, out = carray(pointer(job.x, given), size), carray(pointer(job.out, wanted), size)
        stored = carray(pointer(job.stored, f32), job.size * per_strip)
        g, element = carray(pointer(job.grid, u64), GRID), carray(pointer(job.element, f64), 3)
        signs, rooms = carray(pointer(job.signs, f32), job.group), turning_rooms(job.group)
        counts = np.zeros(NUM_COUNTS, np.int64)
        at_once = max(PIECE // whole, 1) if converts else job.piece
        most = min(at_once * whole, size)
        wide = np.empty(most if widens or turns else 0, u32)
        room = np.empty(most if narrows else 0, u32)
        pieces = (job.size + job.piece - 1) // job.piece
        turn = take(p)
        while turn < pieces:
            start = (pieces - 1 - turn if job.backwards else turn) * job.piece
            stop = min(start + job.piece, job.size)
            for first in range(start, stop, at_once):
                last = min(first + at_once, stop)
                here, there = first * whole, min(last * whole, size)
                xs, ys = x[here:there], room[: there - here] if narrows else out[here:there]
                zs = source(xs, wide, columns, signs, job.factor, rooms, job.shared)
                index = u64(job.offset + u64(here if job.stride == u64(1) else first * height))
                round_strips(
                    zs, ys, columns, stored[first * per_strip : last * per_strip], height, width,
                    job.rule, element, job.amax, job.tensor_encode, job.apart, job.plain,
                    job.stream, job.chance, g, index, job.stride, job.key, job.spare, counts,
                )  # fmt: skip
                if narrows:
                    narrow(ys, out[here:there])
            turn = take(p)
        add_counts(p, counts)

    return strips


def _amax(given: Any) -> Any:
    @cfunc(REGION)
    def amax(p):
        job = carray(p, 1, AMAX)[0]
        x = carray(pointer(job.x, given), job.size)
        start = take(p) * job.piece
        while start < job.size:
            xs = x[start : min(start + job.piece, job.size)]
            largest = finite_amax_of(xs) if job.finite else amax_of(xs)
            raise_to(p, COUNTED, np.int64(largest))
            start = take(p) * job.piece

    return amax


def _turned_amax(given: Any) -> Any:
    @cfunc(REGION, error_model="numpy")
    def turned_amax(p):
        job = carray(p, 1, AMAX)[0]
        if flushes(job.one):
            return
        whole = job.group * job.columns
        x = carray(pointer(job.x, given), job.size * whole)
        signs, rooms = carray(pointer(job.signs, f32), job.group), turning_rooms(job.group)
        wide = np.empty(whole, u32)
        start = take(p) * job.piece
        while start < job.size:
            for group in range(start, min(start + job.piece, job.size)):
                xs = x[group * whole : (group + 1) * whole]
                zs = turn_rows(xs, job.columns, signs, job.factor, wide, rooms)
                largest = finite_amax_of(zs) if job.finite else amax_of(zs)
                raise_to(p, COUNTED, np.int64(largest))
            start = take(p) * job.piece

    return turned_amax


@cache
def span_region(given: Any, wanted: Any) -> Region:
    """Rounds elements one by one: `jobs.Span`; values are read as unsigned integers."""
    return Region(_span(round_span, given, wanted, wanted is u16))


@cache
def powers_region() -> Region:
    """The same of fp32 to powers of two."""
    return Region(_span(round_powers, u32, u32, False))


@cache
def codes_region(given: Any, code: Any) -> Region:
    """The same to codes of a width."""
    return Region(_span(encode_span, given, code, False))


@cache
def strips_region(given: Any, wanted: Any, turns: bool) -> Region:
    """Rounds blocks: `jobs.Strips`; if it turns, after a Hadamard transform."""
    return Region(_strips(given, wanted, turns))


@cache
def amax_region(given: Any, turns: bool) -> Region:
    """Finds the largest magnitude: `jobs.Amax`."""
    return Region(_turned_amax(given) if turns else _amax(given))
