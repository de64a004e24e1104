"""What an accelerator's allocator says, stage by stage: requested, allocated, reserved, device.

Untested: written for machines with CUDA, MPS or XPU from their documentation. On CUDA
`requested_bytes` is what tensors asked for and comparable with theory to the byte; allocated adds
the rounding to 512 bytes; reserved adds what the caching allocator keeps; the device adds contexts
and other processes. Through `torch.accelerator`, MPS and XPU give allocated and reserved.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from floatscope.errors import LedgerError
from floatscope.memory.ledger import Stage

CHAIN = {
    "requested": ("requested_bytes.all", "what tensors asked for"),
    "allocated": ("allocated_bytes.all", "rounded up to the allocator's blocks"),
    "reserved": ("reserved_bytes.all", "kept by the caching allocator, in use or not"),
}
"""Name, key in `memory_stats`, meaning. Each contains the one before."""


@dataclass(frozen=True)
class DeviceFigure:
    """One figure of one stage, in bytes."""

    stage: Stage
    name: str
    live: int
    """When the stage has ended."""
    peak: int | None
    """The most during the stage; None where the device keeps no peak."""
    meaning: str


class DeviceMeter:
    """Reads the statistics of one accelerator around stages.

    Pass `around` to `measure`; then `figures` holds what was read. The first matrix product
    allocates a workspace (cuBLAS: 8 519 680 bytes, 32 MiB on Hopper): after `warm_up` it is there
    in every stage, and a figure of its own.

    Raises:
        LedgerError: no accelerator of this kind here, or one whose statistics Torch cannot read.
    """

    def __init__(self, device: torch.device) -> None:
        found = torch.accelerator.current_accelerator(check_available=True)
        if device.type == "cpu" or found is None or found.type != device.type:
            raise LedgerError(
                f"there is no {device.type} accelerator whose memory statistics could be read."
            )
        self.device = device
        self.figures: list[DeviceFigure] = []
        self.workspace = 0
        """Bytes of what the first product left allocated."""

    def warm_up(self) -> None:
        """Multiply two small matrices, so that the workspace exists before the first stage."""
        before = torch.accelerator.memory_allocated(self.device)
        small = torch.ones(8, 8, device=self.device)
        (small @ small).sum().item()
        del small
        self.workspace = torch.accelerator.memory_allocated(self.device) - before

    @contextmanager
    def around(self, stage: Stage) -> Iterator[None]:
        """Reset the peaks, run the stage, wait for the device and read."""
        if stage is Stage.BUILD:
            gc.collect()
        torch.accelerator.synchronize(self.device)
        torch.accelerator.reset_peak_memory_stats(self.device)
        yield
        torch.accelerator.synchronize(self.device)
        self.figures += self._read(stage)

    def _read(self, stage: Stage) -> Iterator[DeviceFigure]:
        stats = torch.accelerator.memory_stats(self.device)
        for name, (key, meaning) in CHAIN.items():
            live, peak = stats.get(f"{key}.current"), stats.get(f"{key}.peak")
            if live is not None:
                yield DeviceFigure(stage, name, int(live), None if peak is None else int(peak),
                                   meaning)  # fmt: skip
        meaning = "allocated by the first matrix product and kept; part of requested and allocated"
        yield DeviceFigure(stage, "workspace", self.workspace, self.workspace, meaning)
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            meaning = "taken on the device by contexts, libraries and all processes"
            yield DeviceFigure(stage, "device", total - free, None, meaning)
