"""The spectra of the step that is under way."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from floatscope.spectrum.capture.records import Role
from floatscope.spectrum.capture.scales import UNSCALED, Scale
from floatscope.spectrum.capture.taking import Taken, fetched
from floatscope.spectrum.measure import Measurement
from floatscope.spectrum.spectrum import Spectrum

LIMIT = 64 << 20
"""Bytes of tallies that wait on devices; then they are fetched, with one transfer a device."""

Key = tuple[Role, str, str]
"""Role, module path, name."""


@dataclass
class Entry:
    """One spectrum to be."""

    spectrum: Spectrum | None = None
    held: list[tuple[Measurement, Scale]] = field(default_factory=list)
    """Tallies on devices, not yet part of `spectrum`."""
    calls: int = 0
    problem: str = ""
    """Why this is no spectrum, in the end."""

    def merge(self, spectrum: Spectrum, scale: Scale) -> None:
        exponent = scale.exponent()
        if isinstance(exponent, str):
            self.problem = exponent
            return
        spectrum = spectrum.scaled(-exponent) if exponent else spectrum
        self.spectrum = spectrum if self.spectrum is None else self.spectrum + spectrum


class Pending:
    """Entries by key, in the order of their first tensors."""

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self._bytes = 0
        self._lock = threading.Lock()  # autograd has a thread for each device

    def add(
        self,
        key: Key,
        taken: Taken,
        scale: Scale = UNSCALED,
        *,
        instead: bool = False,
        calls: int = 1,
    ) -> None:
        """Merge a tensor into an entry; `instead`, let it take the place of what was there."""
        with self._lock:
            self._add(key, taken, scale, instead, calls)

    def _add(self, key: Key, taken: Taken, scale: Scale, instead: bool, calls: int) -> None:
        entry = self.entries.setdefault(key, Entry())
        entry.calls += calls
        if instead:
            entry.spectrum, entry.problem = None, ""
            entry.held.clear()
        if isinstance(taken, Spectrum):
            entry.merge(taken, scale)
            return
        entry.held.append((taken, scale))
        self._bytes += taken.tally.nbytes
        if self._bytes > LIMIT:
            self.fetch()

    def fetch(self) -> None:
        """Turn all tallies into spectra; this is where devices are waited for."""
        held = [(entry, *one) for entry in self.entries.values() for one in entry.held]
        tallies = fetched([measurement.tally for _, measurement, _ in held])
        for (entry, measurement, scale), tally in zip(held, tallies, strict=True):
            entry.merge(replace(measurement, tally=tally).spectrum(), scale)
            entry.held.clear()
        self._bytes = 0

    def clear(self) -> None:
        self.entries.clear()
        self._bytes = 0
