"""Figures of an accelerator, from a stand-in for its statistics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import nn

from floatscope.lab.memory.record import NO_BLOCKS, rounding
from floatscope.lab.memory.witnesses import Arm
from floatscope.memory import Measurement, Stage, Workload, measure
from floatscope.memory.device import DeviceMeter
from tests.memory_workloads import small_batch


def measured() -> Measurement:
    return measure(
        Workload(
            model=lambda: nn.Linear(8, 3), batch=small_batch, loss_of=lambda m, b: m(b[0]).sum()
        )
    )


class StandIn:
    """An accelerator whose first product allocates a workspace of 4096 bytes."""

    def __init__(self, *, says_requested: bool) -> None:
        self.allocated, self.peaks_reset = 0, 0
        self.says_requested = says_requested

    def ones(self, *shape: int, device: torch.device) -> torch.Tensor:
        self.allocated += 4096
        return torch.zeros(*shape)

    def memory_stats(self, device: torch.device) -> dict[str, int]:
        stats = {
            "allocated_bytes.all.current": self.allocated + 1024,
            "allocated_bytes.all.peak": self.allocated + 2048,
            "reserved_bytes.all.current": 2 << 20,
            "reserved_bytes.all.peak": 2 << 20,
        }
        if self.says_requested:
            stats["requested_bytes.all.current"] = self.allocated + 1000
            stats["requested_bytes.all.peak"] = self.allocated + 2000
        return stats

    def install(self, monkeypatch: pytest.MonkeyPatch) -> torch.device:
        device = torch.device("xpu")
        for name, value in {
            "current_accelerator": lambda check_available: device,
            "memory_allocated": lambda device: self.allocated,
            "memory_stats": self.memory_stats,
            "reset_peak_memory_stats": lambda device: self._reset(),
            "synchronize": lambda device: None,
        }.items():
            monkeypatch.setattr(torch.accelerator, name, value)
        monkeypatch.setattr(torch, "ones", self.ones)
        return device

    def _reset(self) -> None:
        self.peaks_reset += 1


def figures(monkeypatch: pytest.MonkeyPatch, *, says_requested: bool) -> list[dict[str, Any]]:
    stand_in = StandIn(says_requested=says_requested)
    meter = DeviceMeter(stand_in.install(monkeypatch))
    meter.warm_up()
    monkeypatch.undo()
    stand_in.install(monkeypatch)
    for stage in Stage:
        with meter.around(stage):
            pass
    assert stand_in.peaks_reset == len(Stage)
    return [asdict(figure) for figure in meter.figures]


def test_the_chain_of_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [f for f in figures(monkeypatch, says_requested=True) if f["stage"] == Stage.BUILD]
    sizes = {f["name"]: (f["live"], f["peak"]) for f in found}
    assert sizes == {
        "requested": (5096, 6096), "allocated": (5120, 6144), "reserved": (2 << 20, 2 << 20),
        "workspace": (4096, 4096),
    }  # fmt: skip
    assert all(f["meaning"] for f in found)


def test_rounding_is_allocated_minus_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    device = tuple(figures(monkeypatch, says_requested=True))
    monkeypatch.undo()
    rows = list(rounding(Arm(recipe="fp32", measured=measured(), device=device)))
    assert [(row.live, row.peak) for row in rows] == [(24, 48)] * len(Stage)


def test_without_requested_bytes_it_is_allocated_minus_the_meters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = tuple(figures(monkeypatch, says_requested=False))
    monkeypatch.undo()
    found = measured()
    rows = list(rounding(Arm(recipe="fp32", measured=found, device=device)))
    for row, stage in zip(rows, found.stages, strict=True):
        assert row.live == 5120 - stage.live.total
        assert row.peak == 6144 - stage.peak.total


def test_a_cpu_has_no_blocks() -> None:
    rows = list(rounding(Arm(recipe="fp32", measured=measured())))
    assert [(row.live, row.peak, row.meaning) for row in rows] == [(0, 0, NO_BLOCKS)] * len(Stage)
    assert list(rounding(Arm(recipe="fp32"))) == []
