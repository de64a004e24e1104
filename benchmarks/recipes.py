"""One training step of the novel model under recipes beyond 16-bit autocast.

    python benchmarks/recipes.py [--rounds 5] [--recipes fp8-current,mxfp8,nvfp4,bf16-sr]
                                 [--without-units]
    python benchmarks/recipes.py --memory

Seconds and multiples of the fp32 step, interleaved in one run. Promised: fp8-current, mxfp8 and
nvfp4 at most 1.25, and at most 0.85 where the processor has bf16 units; bf16-sr at most 1.03, and
0.75 there; fp8-deepseek, whose sums are those of a short accumulator, at most 8. With
--without-units, a processor that has them does as if it had none: 16-bit products are emulated.

With --memory, two metered steps each in place of the timing: the highest peak of all tensors, the
engine's own among them, natively and with 16-bit products emulated. Promised: at most 1.2 of that
of fp32. Bytes do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse

import torch

from floatscope.lab.memory.target import Spec, target_of
from floatscope.lab.run.environment import processor
from floatscope.memory import measure
from floatscope.recipes import multiply
from floatscope.recipes.backend import has_units
from measure import interleaved, ratio
from train_step import step_of

PROMISES = {
    "fp8-current": (1.25, 0.85), "mxfp8": (1.25, 0.85), "nvfp4": (1.25, 0.85),
    "bf16-sr": (1.03, 0.75), "fp8-deepseek": (8.0, 8.0),
}  # fmt: skip
"""Without bf16 units, and with them."""
BATCH = 32
PEAK = 1.2


def memory(names: list[str]) -> None:
    """Peaks of two steps, and multiples of fp32's."""
    target, whole = target_of(Spec(model="novel")), 0
    for name, backend in ((n, b) for n in names for b in ("native", "emulated")):
        if name == "fp32" and backend == "emulated":
            continue
        found = measure(target.workload(name, backend))
        peak, engine = found.peak.peak.total, max(stage.engine for stage in found.stages)
        whole = whole or peak
        times = peak / whole
        said = "" if name == "fp32" else f"promised {PEAK}"
        print(f"  {name:14} {backend:9} {peak / 2**20:8.1f} MiB   {times:5.3f}  {said}   "
              f"the engine at most {engine / 2**20:.1f} MiB", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recipes", default="bf16-mixed,bf16-sr,fp8-current,mxfp8,nvfp4")
    parser.add_argument("--without-units", action="store_true")
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    names = ["fp32", *options.recipes.split(",")]
    if options.memory:
        memory(names)
        return
    units = has_units("bf16", torch.device("cpu")) and not options.without_units
    if not units:
        multiply.has_units = lambda *_: False
    kind = "bf16 units" if units else "no bf16 units"
    print(f"{processor()}; {kind}; {torch.get_num_threads()} threads")
    backend = "auto" if units else "emulated"
    steps = {name: step_of(name, backend, BATCH) for name in names}
    timings, dropped = interleaved(steps, rounds=options.rounds)
    print(f"{options.rounds} rounds, {dropped} dropped for foreign load (negative: all kept)")
    for name in names:
        promise = PROMISES.get(name)
        said = f"promised {promise[units]}" if promise else ""
        times = ratio(timings[name], timings["fp32"])
        print(f"  {name:14} {timings[name].median:6.2f} s   {times:5.2f}  {said}")


if __name__ == "__main__":
    main()
