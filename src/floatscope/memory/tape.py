"""What was allocated and freed, in order, and what that says of any moment.

A tape knows nothing of Torch. Its positions are moments: position k is the moment after the first
k events.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from floatscope.memory.ledger import Stage

EVERYTHING = range(sys.maxsize)


class Place(NamedTuple):
    """Where in the code something happens."""

    module: str
    """Path of the module whose forward runs, empty for the model itself; in parentheses what is
    outside: "(loss)", "(optimizer)"."""
    operation: str
    """The Torch function called by the code, such as "rms_norm"."""


class CastOf(NamedTuple):
    """What a cast was made from; casts to one dtype with equal ones of these hold equal values."""

    number: int
    """Of the source's storage."""
    version: int
    """How often the source had been changed in place."""
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One storage, from its first sight on."""

    dtype: str
    place: Place
    stage: Stage
    in_backward: bool = False
    is_cast: bool = False
    """Made by converting a wider floating-point tensor to 16 bits or fewer."""
    made_as: str = ""
    """What the engine of recipes made it as, such as "quantized weight"; empty for what a device
    would make too."""
    is_older: bool = False
    """First seen as an operand: it was made before the measurement, or out of its sight."""
    cast_of: CastOf | None = None
    """Of a cast: what it was made from."""


class Saver(NamedTuple):
    """Who saved a storage for backward first."""

    place: Place
    dtype: str


class Tape:
    """Events of allocation and release; sizes in bytes."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.saved: dict[int, Saver] = {}
        self.outputs: set[int] = set()
        """Storages that the model returned."""
        self.last_use: dict[int, int] = {}
        """The position behind the last operation that took a storage as an operand."""
        self.stages: dict[Stage, tuple[int, int]] = {}
        """First and last position of each stage that has ended."""
        self._events: list[tuple[int, int]] = []
        self._sizes: dict[int, int] = {}

    @property
    def events(self) -> Sequence[tuple[int, int]]:
        """Number of a storage and change of its bytes, in order."""
        return self._events

    @property
    def position(self) -> int:
        """Now."""
        return len(self._events)

    def allocate(self, allocation: Allocation, size: int) -> int:
        """Record a new storage; returns its number."""
        number = len(self.allocations)
        self.allocations.append(allocation)
        self.resize(number, size)
        return number

    def resize(self, number: int, size: int) -> None:
        """Record that a storage now has `size` bytes; nothing happens if it had."""
        change = size - self._sizes.get(number, 0)
        if change:
            self._sizes[number] = size
            self._events.append((number, change))

    def free(self, number: int) -> None:
        """Record the end of a storage."""
        self.resize(number, 0)

    def size(self, number: int) -> int:
        """Bytes that a storage has now."""
        return self._sizes[number]

    def live_at(self, position: int) -> dict[int, int]:
        """Bytes by storage at a position, in the order of allocation."""
        sizes: dict[int, int] = {}
        for number, change in self._events[:position]:
            sizes[number] = sizes.get(number, 0) + change
        return {number: size for number, size in sorted(sizes.items()) if size}

    def peak(self, first: int, last: int, among: Container[int] = EVERYTHING) -> tuple[int, int]:
        """The most bytes alive from position `first` to `last`, and where that is first so.

        Args:
            first: a position.
            last: another.
            among: numbers of the storages that count.
        """
        running = sum(change for number, change in self._events[:first] if number in among)
        most, where = running, first
        for index in range(first, last):
            number, change = self._events[index]
            running += change if number in among else 0
            if running > most:
                most, where = running, index + 1
        return most, where
