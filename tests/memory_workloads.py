"""Workloads for the tests of the memory room, and the profiler's allocator events."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.identity import said
from floatscope.lab.model import make_gpt
from floatscope.lab.run.train import batch_loss
from floatscope.memory.closed_form import GPTNumbers
from floatscope.memory.measurement import Measurement
from floatscope.memory.meter import measure
from floatscope.memory.workload import Workload
from tests import tiny


def gpt(
    recipe: str, config: GPTConfig, batch_size: int, backend: str = "native"
) -> tuple[Workload, GPTNumbers]:
    """The laboratory's GPT as a workload, and its numbers."""
    workload = Workload(
        model=lambda: make_gpt(config, seed=1),
        batch=lambda: tiny.batch(config, batch_size),
        loss_of=batch_loss,
        recipe=recipe,
        backend=backend,
    )
    return workload, GPTNumbers(**said(config), batch_size=batch_size)


def tiny_gpt(
    recipe: str, attention: str, backend: str = "native", **changes: int
) -> tuple[Workload, GPTNumbers]:
    config = replace(tiny.MODEL, attention=attention, **changes)  # type: ignore[arg-type]
    return gpt(recipe, config, 4, backend)


def refereed(workload: Workload) -> tuple[Measurement, dict[str, tuple[int, int]]]:
    """A measurement, and the allocator's own events of the same run.

    Workspaces are left out: what the kernel of a product allocates beside its result and frees
    again before it returns is no tensor. oneDNN does so in 16 bits on some processors.

    Returns:
        By stage, the bytes allocated when it had ended and at its peak.
    """
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        measured = measure(workload, around=lambda stage: record_function(f"stage: {stage}"))
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    products = _innermost([(e.start_ns(), e.end_ns()) for e in events if e.name() in _PRODUCTS])
    changes = _without_workspaces(changes, products)
    spans = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns(), e.name().removeprefix("stage: "))
        for e in events
        if e.name().startswith("stage: ")
    )
    figures, running, done = {}, 0, 0
    for _, end, stage in spans:
        peak = running
        while done < len(changes) and changes[done][0] <= end:
            running += changes[done][1]
            peak = max(peak, running)
            done += 1
        figures[stage] = (running, peak)
    return measured, figures


_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")


def _innermost(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that contain no other: an emulated product has the product of its copies within."""
    spans = sorted(spans)
    following = [start for start, _ in spans[1:]]
    return [span for span, start in zip(spans, following, strict=False) if start > span[1]] + (
        spans[-1:]
    )


def _without_workspaces(
    changes: list[tuple[int, int]], products: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Sorted changes (time, bytes) but for those that cancel each other within a product."""
    times = [time for time, _ in changes]
    dropped: set[int] = set()
    for start, end in products:
        inside = range(bisect_left(times, start), bisect_right(times, end))
        for freed in (i for i in inside if changes[i][1] < 0):
            made = [i for i in inside if i < freed and changes[i][1] == -changes[freed][1]]
            dropped |= {made[-1], freed} if made else set()
    return [change for i, change in enumerate(changes) if i not in dropped]


def small_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (4, 8) and targets (4, 3)."""
    return torch.randn(4, 8), torch.randn(4, 3)
