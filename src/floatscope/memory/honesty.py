"""Is a trace to be believed? The real step and the traced one at a tiny shape, side by side.

Code may ask whether it is being traced and compute something else, and a few kernels keep what only
they know the size of. Both show at any shape, so they are looked for at one that costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from floatscope.errors import LedgerError
from floatscope.memory.ledger import Ledger, Stage
from floatscope.memory.measurement import Measurement
from floatscope.memory.meter import measure
from floatscope.memory.trace import trace
from floatscope.memory.units import mib
from floatscope.memory.workload import Workload

PROMISED = 0.01
"""Share of any stage's bytes by which a trace may be off."""
LARGEST = 1 << 30
"""Bytes beyond which a shape is not tiny, and is not run."""


@dataclass(frozen=True, kw_only=True)
class Honesty:
    """What a trace is worth."""

    traced: Measurement
    measured: Measurement

    @property
    def rows(self) -> Ledger:
        """Saved tensors of the trace minus those of the meter, by module, function and dtype."""
        names = ("module", "operation", "dtype")
        return self.traced.saved.project(*names) - self.measured.saved.project(*names)

    def figures(self) -> Iterator[tuple[Stage, str, int, int]]:
        """Stage, "live" or "peak", bytes by trace and by meter, where the two differ."""
        for fake, real in zip(self.traced.stages, self.measured.stages, strict=True):
            for moment in ("live", "peak"):
                one, other = getattr(fake, moment).total, getattr(real, moment).total
                if one != other:
                    yield real.stage, moment, one, other

    @property
    def worst(self) -> float:
        """The largest share of the meter's figure by which the trace is off; signed."""
        shares = [(one - other) / max(1, other) for _, _, one, other in self.figures()]
        return max(shares, key=abs, default=0.0)

    @property
    def agrees(self) -> bool:
        """Within the 1 % that is promised."""
        return abs(self.worst) <= PROMISED

    def says(self) -> list[str]:
        """The finding in sentences, with the tensors that differ."""
        if not list(self.figures()) and not self.rows:
            return ["At a tiny shape, trace and meter agree to the byte in every stage."]
        stage, moment, one, other = max(
            self.figures(), key=lambda f: abs(f[2] - f[3]) / max(1, f[3]),
            default=(Stage.FORWARD, "saved", 0, 0),
        )  # fmt: skip
        verdict = "within" if self.agrees else "NOT within"
        lines = [
            f"At a tiny shape the trace is {verdict} {100 * PROMISED:g} % of the meter: the "
            f"{moment} of the {stage} is off by {one - other:+,} of {other:,} bytes "
            f"({100 * self.worst:+.2f} %)."
        ]
        lines += [f"Why: {note}." for note in self.traced.notes]
        lines += [
            f"trace minus meter, saved in {row.module or 'the model'} by {row.operation}, "
            f"{row.dtype}: {row.bytes:+,} bytes"
            for row in sorted(self.rows, key=lambda row: -abs(row.bytes))
        ]
        return lines


def check(workload: Workload) -> Honesty:
    """Trace and measure a workload of a tiny shape.

    Args:
        workload: what to run, really too. A model that it hands over is trained by it.

    Raises:
        LedgerError: the shape is not tiny, or the code cannot be traced.
    """
    traced = trace(workload)
    most = traced.peak.peak.total
    if most > LARGEST:
        raise LedgerError(f"a shape that takes {mib(most)} MiB is not tiny; name a smaller one.")
    return Honesty(traced=traced, measured=measure(workload))
