"""Who else uses the machine while something is measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from floatscope.lab.run.environment import load_average

WATCH_SECONDS = 0.5
BUSY_SHARE = 0.10
"""Of one core, from which on a process counts as another user."""


@dataclass(frozen=True, kw_only=True)
class Neighbors:
    """What else ran at one moment."""

    busy: tuple[str, ...]
    """Other processes that used more than a tenth of a core: name and percent of a core."""
    foreign_cores: float
    """Cores that all other processes together used."""
    load: float
    """The system's load of the last minute; NaN where it has none."""
    on_device: tuple[str, ...] = ()
    """Other processes with memory on the accelerator: process number and bytes."""

    @property
    def alone(self) -> bool:
        return not self.busy and not self.on_device


def neighbors(device: str = "cpu", seconds: float = WATCH_SECONDS) -> Neighbors:
    """Watch the machine for `seconds`, and an NVIDIA device where `device` is one.

    This process is left out, and what it started. What the system hides from this user counts as
    absent.
    """
    import psutil

    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    before = _used(own)
    started = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - started
    shares = {
        (pid, name): (used - before[pid, name]) / elapsed
        for (pid, name), used in _used(own).items()
        if (pid, name) in before
    }
    busy = sorted(((s, name) for (_, name), s in shares.items() if s > BUSY_SHARE), reverse=True)
    return Neighbors(
        busy=tuple(f"{name} ({100 * share:.0f} %)" for share, name in busy),
        foreign_cores=round(sum(shares.values()), 2),
        load=load_average(),
        on_device=_on_device(own) if device.startswith("cuda") else (),
    )


def _used(own: set[int]) -> dict[tuple[int, str], float]:
    """Processor seconds of every other process."""
    import psutil

    used = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if process.pid not in own and times is not None:
            used[process.pid, process.info["name"] or "?"] = times.user + times.system
    return used


def _on_device(own: set[int]) -> tuple[str, ...]:
    """Processes with memory on an NVIDIA device; empty where nvidia-ml-py is not installed."""
    try:
        import pynvml  # type: ignore[import-not-found]

        pynvml.nvmlInit()
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found += pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except Exception:
        return ()
    others = (p for p in found if p.pid not in own)
    return tuple(f"process {p.pid} ({p.usedGpuMemory or 0} B)" for p in others)
