"""Fair timing of variants side by side: interleaved, with disturbed repetitions dropped.

A repetition counts only if other processes used less than a tenth of the machine's processor time
while it ran. Ratios are taken within a round, so that a drift of the machine's speed cancels. One
thread spins before each repetition until Torch's have fallen asleep: these spin for some
milliseconds after an operation, and hold the cores that the next variant needs. Sleeping instead
would let the processor do so too, and the next repetition would begin with waking it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

MAX_FOREIGN_SHARE = 0.10
PAUSE = 0.01
"""Seconds of spinning before each repetition."""


@dataclass
class Timing:
    """Seconds of one variant, a figure a counted round."""

    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def interleaved(
    variants: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 1
) -> tuple[dict[str, Timing], int]:
    """Time every variant once a round, in turn.

    Returns:
        Timings by name, all of the same undisturbed rounds, and the number of rounds dropped. If no
        round was undisturbed, all are kept and the number is negative.
    """
    for _ in range(warmup):
        for variant in variants.values():
            variant()
    results: list[tuple[float, dict[str, float]]] = []
    for _ in range(rounds):
        measured = {name: _timed(variant) for name, variant in variants.items()}
        foreign = max(share for _, share in measured.values())
        results.append((foreign, {name: seconds for name, (seconds, _) in measured.items()}))
    kept = [times for foreign, times in results if foreign <= MAX_FOREIGN_SHARE]
    dropped = len(results) - len(kept)
    if not kept:
        kept, dropped = [times for _, times in results], -len(results)
    return {name: Timing([times[name] for times in kept]) for name in variants}, dropped


def ratio(one: Timing, other: Timing) -> float:
    """Median over rounds of one's seconds by the other's."""
    pairs = zip(one.seconds, other.seconds, strict=True)
    return statistics.median(a / b for a, b in pairs)


def _timed(variant: Callable[[], object]) -> tuple[float, float]:
    ready = time.perf_counter() + PAUSE
    while time.perf_counter() < ready:
        pass
    machine, own, started = _machine_seconds(), sum(os.times()[:4]), time.perf_counter()
    variant()
    seconds = time.perf_counter() - started
    foreign = (_machine_seconds() - machine) - (sum(os.times()[:4]) - own)
    return seconds, foreign / (seconds * (psutil.cpu_count() or 1))


def _machine_seconds() -> float:
    """Processor seconds that all processes together have used."""
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0)
