"""What compiled regions are given: one structure each, which Python fills in and a region reads.

A region runs without the interpreter, on several threads with the same job; each takes the next
piece of it until none is left. That costs a microsecond or two, where Python's handing its lock
from thread to thread takes a tenth of a millisecond.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from floatscope.rounding.receipt import NUM_COUNTS

FLAG, SMALL, WORD, SIGNED = ctypes.c_bool, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64
ADDRESS = WORD

HEAD: list[tuple[str, Any]] = [
    ("taken", SIGNED),
    ("counts", SIGNED * NUM_COUNTS),
    ("size", SIGNED),
    ("piece", SIGNED),
    ("one", SMALL),
]
"""How many pieces are taken, what was counted, how much there is to do and how much of it is a
piece; and the number 1, which no compiler may know."""
TAKEN, COUNTED = 0, 1
"""Where the first two are, in words of 64 bits."""


class Span(ctypes.Structure):
    """Elements to round one by one; `size` and `piece` count them."""

    _fields_ = [
        *HEAD,
        ("x", ADDRESS),
        ("out", ADDRESS),
        ("grid", ADDRESS),
        ("offset", WORD),
        ("key", WORD),
        ("spare", SMALL),
        ("stream", FLAG),
        ("counted", FLAG),
        ("shared", FLAG),
    ]


class Strips(ctypes.Structure):
    """Strips of blocks to round; `size` and `piece` count strips.

    `backwards`, from the last piece to the first, is for a second look at data: what was read last
    is in the cache yet. `shared`: x and out are the same memory. `stride`: how far apart neighbors
    of a row are counted for stochastic rounding; 1 in the order of memory. `signs` are those of a
    Hadamard transform of `group` rows at a time, which comes first, and `factor` is its own.
    """

    _fields_ = [
        *HEAD,
        ("x", ADDRESS),
        ("out", ADDRESS),
        ("stored", ADDRESS),
        ("grid", ADDRESS),
        ("element", ADDRESS),
        ("rows", SIGNED),
        ("columns", SIGNED),
        ("height", SIGNED),
        ("width", SIGNED),
        ("rule", SIGNED),
        ("amax", SMALL),
        ("tensor_encode", ctypes.c_float),
        ("signs", ADDRESS),
        ("group", SIGNED),
        ("factor", ctypes.c_float),
        ("offset", WORD),
        ("stride", WORD),
        ("key", WORD),
        ("spare", SMALL),
        ("apart", FLAG),
        ("plain", FLAG),
        ("stream", FLAG),
        ("chance", FLAG),
        ("shared", FLAG),
        ("backwards", FLAG),
    ]


class Amax(ctypes.Structure):
    """Elements whose largest magnitude is wanted, in the place of the first count.

    With `signs`, it is that of the Hadamard transforms of `group` rows each; `size` and `piece`
    count groups then.
    """

    _fields_ = [
        *HEAD,
        ("x", ADDRESS),
        ("finite", FLAG),
        ("signs", ADDRESS),
        ("group", SIGNED),
        ("columns", SIGNED),
        ("factor", ctypes.c_float),
    ]


class Region:
    """A compiled region: a function of a job's address."""

    def __init__(self, compiled: Any) -> None:
        self.address: int = compiled.address
        self.call: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)
        self._compiled = compiled  # which owns the code
