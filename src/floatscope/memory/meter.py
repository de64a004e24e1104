"""The meter: what two training steps really allocate, storage by storage.

On a CPU this is the instrument: bytes agree with the allocator's own events within 64 in every
stage. On other devices it counts what tensors ask for, not what the device's allocator rounds up or
keeps; `DeviceMeter` reads that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from floatscope.errors import LedgerError
from floatscope.memory.ledger import Stage
from floatscope.memory.measurement import Labels, Measurement, Witness, measurement
from floatscope.memory.units import mib
from floatscope.memory.watch import Watch
from floatscope.memory.workload import Alive, Workload, stages

Around = Callable[[Stage], AbstractContextManager[Any]]


def measure(workload: Workload, around: Around | None = None) -> Measurement:
    """Run a workload's two steps and account for every byte.

    The steps are real: a model that the workload merely hands over has been trained afterwards.
    Saved tensors of a block under activation checkpointing are its inputs, as they should be. Hooks
    of other instruments on saved tensors, entered inside, hide what they pack.

    Args:
        workload: what to run, on real tensors.
        around: makes a context manager that is entered around each stage, such as
            `lambda stage: torch.profiler.record_function(stage)`.

    Returns:
        Bytes alive after each stage and at its peak, and what is saved for backward.

    Raises:
        LedgerError: the workload insists on compiled code.
        RecipeError: see `stages`. What the workload itself raises passes through, with a note of
            the stage and of the memory at that moment; nothing of the meter stays behind.
    """
    return observe(workload, "meter", around=around)


def observe(
    workload: Workload,
    witness: Witness,
    *,
    around: Around | None = None,
    prepare: Callable[[Alive], None] | None = None,
) -> Measurement:
    """Run a workload's stages under a `Watch`; for `measure` and `trace`.

    Args:
        workload: what to run.
        witness: on whose behalf.
        around: makes a context manager for each stage.
        prepare: may exchange model and batch when they are made and nothing depends on them yet.
    """
    watch = Watch()
    labels = Labels(watch)
    run = stages(workload, prepare=prepare, has_values=witness == "meter")
    alive = Alive()
    with watch:
        for stage in Stage:
            watch.begin(stage)
            try:
                with around(stage) if around is not None else nullcontext():
                    alive = next(run)
            except Exception as error:
                error.add_note(_note(watch, stage))
                if _COMPILED in str(error):
                    raise LedgerError(
                        f"in the stage {stage} the workload insists on compiled code, which cannot "
                        'be metered. Run it with torch.compiler.set_stance("force_eager").'
                    ) from error
                raise
            if stage is Stage.BUILD:
                watch.watch(alive.model)
                watch.engine = alive.engine
            labels.read(alive)
            watch.end()
        return measurement(watch, labels, witness, alive)


_COMPILED = "non-infra torch dispatch mode present"
"""Part of what Torch says when code that must be compiled runs under a dispatch mode."""


def _note(watch: Watch, stage: Stage) -> str:
    tape = watch.tape
    now = sum(tape.live_at(tape.position).values())
    most, _ = tape.peak(0, tape.position)
    return (
        f"Raised in the stage {stage}; tensors held {mib(now)} MiB then, "
        f"{mib(most)} MiB at the most."
    )
