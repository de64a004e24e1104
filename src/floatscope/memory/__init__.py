"""The memory ledger: every byte of a training step has a row.

Three witnesses: formulas (`formula`, `states`, `closed_form`), the trace of a step on tensors
without data (`trace.trace`), and the meter (`measure`). `selftest.selftest` holds the formulas to
published tables. Names that need Torch are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from floatscope.memory.ledger import Category as Category
from floatscope.memory.ledger import Ledger as Ledger
from floatscope.memory.ledger import Lifetime as Lifetime
from floatscope.memory.ledger import Row as Row
from floatscope.memory.ledger import Stage as Stage

if TYPE_CHECKING:
    from floatscope.memory.measurement import Measurement as Measurement
    from floatscope.memory.meter import measure as measure
    from floatscope.memory.workload import Workload as Workload

_HOMES = {
    "Measurement": "floatscope.memory.measurement",
    "measure": "floatscope.memory.meter",
    "Workload": "floatscope.memory.workload",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
