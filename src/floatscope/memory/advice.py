"""What would free memory: casts made twice, and peaks replayed with something changed.

A measurement's history is a list of allocations and releases. A change is a set of gaps: bytes that
would not be there from one position of the tape to another. Taking gaps off the running sum gives
the peaks that would have been, without running anything again. Where a change would make new
tensors, their sizes are estimated and it says so; `recompute` is such an estimate.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from floatscope.errors import LedgerError
from floatscope.memory.ledger import Stage
from floatscope.memory.measurement import History, Measurement

CHUNKS = 8
"""Pieces into which the loss is cut."""


@dataclass(frozen=True, kw_only=True)
class DuplicateCast:
    """Casts of one tensor to one dtype that wait for backward together; all hold equal values."""

    module: str
    """Where the tensor was made."""
    operation: str
    dtype: str
    consumers: tuple[str, ...]
    """Modules that saved a copy, in order."""
    bytes: int
    """What one shared copy would free."""


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """A change, and the peak of the two steps with it."""

    change: str
    peak: int
    """Bytes."""
    difference: int
    """From the peak as it is; negative frees memory."""
    stage: Stage
    """Where the peak is then."""
    assumes: str = ""


class _Gap(NamedTuple):
    first: int
    last: int
    size: int
    """Bytes that are gone between the two positions; negative adds."""


class _Life(NamedTuple):
    """When a storage lives: positions before and behind, and its most bytes."""

    birth: int
    death: int
    size: int


def duplicate_casts(measurement: Measurement) -> list[DuplicateCast]:
    """Casts that autocast made more than once in the first forward, the largest first.

    The source was not changed between them, which is proof that they hold the same values.

    Raises:
        LedgerError: the measurement has no history, since it was read from a record.
    """
    history = _history(measurement)
    tape, lives = history.tape, _lives(history)
    found = []
    for numbers in _repeated(history, Stage.FORWARD):
        source = tape.allocations[tape.allocations[numbers[0]].cast_of.number]  # type: ignore[union-attr]
        found.append(
            DuplicateCast(
                module=source.place.module,
                operation=source.place.operation,
                dtype=tape.allocations[numbers[0]].dtype,
                consumers=tuple(tape.saved[n].place.module for n in numbers),
                bytes=sum(lives[n].size for n in numbers[1:]),
            )
        )
    return sorted(found, key=lambda one: -one.bytes)


def what_ifs(measurement: Measurement) -> list[WhatIf]:
    """The peak as it is, and with each of several changes.

    Changes that have nothing to act on are left out.

    Raises:
        LedgerError: the measurement has no history, since it was read from a record.
    """
    history = _history(measurement)
    base, where = _peak(history, [])
    found = [WhatIf(change="as it is", peak=base, difference=0, stage=where)]
    for change, gaps, assumes in (
        ("share casts", _shared(history), ""),
        ("drop logits early", _dropped_early(history), "freed behind their last use"),
        (f"chunk the loss by {CHUNKS}", _chunked(history),
         f"each tensor of the loss has an {CHUNKS}th of its size; what chunks keep is not added"),
        ("fuse the optimizer", _fused(history), "the update makes no temporaries"),
        ("recompute every block", _recomputed(history),
         "each block keeps its input and makes its saved tensors again in backward; temporaries of "
         "recomputing are not added"),
    ):  # fmt: skip
        if gaps:
            peak, where = _peak(history, gaps)
            found.append(WhatIf(change=change, peak=peak, difference=peak - base, stage=where,
                                assumes=assumes))  # fmt: skip
    return found


def _history(measurement: Measurement) -> History:
    if measurement.history is None:
        raise LedgerError("a measurement that was read from a record has no events to replay.")
    return measurement.history


def _lives(history: History) -> dict[int, _Life]:
    births: dict[int, int] = {}
    deaths: dict[int, int] = {}
    sizes: dict[int, int] = defaultdict(int)
    now: dict[int, int] = defaultdict(int)
    for position, (number, change) in enumerate(history.tape.events):
        births.setdefault(number, position)
        now[number] += change
        sizes[number] = max(sizes[number], now[number])
        if now[number] == 0:
            deaths[number] = position
    end = history.tape.position
    return {n: _Life(birth, deaths.get(n, end), sizes[n]) for n, birth in births.items()}


def _peak(history: History, gaps: Iterable[_Gap]) -> tuple[int, Stage]:
    """The most bytes of any stage with the gaps taken off, and its stage."""
    change = [0, *(change for _, change in history.tape.events), 0]
    for first, last, size in gaps:
        change[first + 1] -= size
        change[last + 1] += size
    running = list(accumulate(change))
    return max(
        ((max(running[first : last + 1]), stage)
         for stage, (first, last) in history.tape.stages.items()),
        key=lambda found: found[0],
    )  # fmt: skip


def _repeated(history: History, stage: Stage) -> Iterator[list[int]]:
    """Numbers of saved casts of a forward that hold the same values, in order."""
    tape = history.tape
    groups: dict[object, list[int]] = defaultdict(list)
    for number in tape.saved:
        made = tape.allocations[number]
        if made.cast_of is not None and made.stage is stage:
            groups[made.cast_of, made.dtype].append(number)
    yield from (numbers for numbers in groups.values() if len(numbers) > 1)


def _shared(history: History) -> list[_Gap]:
    lives, gaps = _lives(history), []
    for stage in (Stage.FORWARD, Stage.FORWARD_2):
        for first, *others in _repeated(history, stage):
            gaps += [_Gap(*lives[n]) for n in others]
            longest = max(lives[n].death for n in others)
            if longest > lives[first].death:
                gaps.append(_Gap(lives[first].death, longest, -lives[first].size))
    return gaps


def _dropped_early(history: History) -> list[_Gap]:
    tape, lives = history.tape, _lives(history)
    return [
        _Gap(tape.last_use[n], lives[n].death, lives[n].size)
        for n in tape.outputs
        if n in lives and n not in tape.saved and tape.last_use.get(n, lives[n].death)
        < lives[n].death
    ]  # fmt: skip


def _chunked(history: History) -> list[_Gap]:
    return [
        _Gap(life.birth, life.death, life.size - -(-life.size // CHUNKS))
        for number, life in _lives(history).items()
        if history.is_of_loss(number)
    ]


def _fused(history: History) -> list[_Gap]:
    made = history.tape.allocations
    return [
        _Gap(*life)
        for number, life in _lives(history).items()
        if made[number].stage is Stage.OPTIMIZER and number not in history.labels
    ]


def _recomputed(history: History) -> list[_Gap]:
    """What blocks save is gone between the end of their forward and their backward."""
    tape, lives, gaps = history.tape, _lives(history), []
    for forward, backward in (
        (Stage.FORWARD, Stage.BACKWARD), (Stage.FORWARD_2, Stage.BACKWARD_2)
    ):  # fmt: skip
        ends, begins = _turns(history, forward, False), _turns(history, backward, True)
        for number, saver in tape.saved.items():
            made, block = tape.allocations[number], block_of(saver.place.module)
            inside = block is not None and block_of(made.place.module) == block
            if made.stage is not forward or not inside or number in history.labels:
                continue
            first, last = ends.get(str(block), 0), begins.get(str(block), 0)
            if lives[number].birth <= first < last <= lives[number].death:
                gaps.append(_Gap(first, last, lives[number].size))
    return gaps


def _turns(history: History, stage: Stage, is_backward: bool) -> dict[str, int]:
    """By block, the position behind its last allocation in forward, or before backward's first."""
    tape, found = history.tape, {}
    first, last = tape.stages[stage]
    for position in range(first, last):
        number, change = tape.events[position]
        made = tape.allocations[number]
        block = block_of(made.place.module)
        if change <= 0 or block is None or made.in_backward is not is_backward:
            continue
        if is_backward:
            found.setdefault(block, position)
        else:
            found[block] = position + 1
    return found


def block_of(module: str) -> str | None:
    """The repeated block that a module path lies in: "h.3" of "h.3.attn.q"; None outside of one."""
    found = re.match(r"(?:.*?\.)??\d+(?=\.|$)", module)
    return found[0] if found is not None else None
