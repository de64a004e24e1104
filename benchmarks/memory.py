"""What the trace and the meter cost.

    python benchmarks/memory.py [--rounds 7] [--preset novel]

First, Llama-3-8B's shape (8.0e9 parameters, 8192 tokens, bf16-mixed) traced in a process of its
own: seconds and memory, with transformers' own model. Promised: under 10 s, under 1 GB. The time is
that of the trace, model included; imports come on top and have a line of their own.

Then two steps of a preset bare and metered, interleaved, the ratio taken within rounds, of seconds
and of the process's own processor time, which others on the machine do not lengthen. Promised: at
most 1.5 of a real step, such as the novel preset's; a step of a few milliseconds pays more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from floatscope.lab.memory.target import Spec, target_of
from floatscope.lab.run.environment import peak_rss_bytes, processor
from floatscope.memory import measure
from floatscope.memory.trace import trace
from floatscope.memory.workload import stages
from measure import interleaved, ratio

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128_256,
    "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    "rope_theta": 500_000.0, "tie_word_embeddings": False,
}  # fmt: skip


def trace_llama() -> None:
    """In a process of its own: print seconds and bytes as JSON. A test reads them, too."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(LLAMA_3_8B))
        target = target_of(Spec(model=str(config), context=8192))
    import transformers.models.llama.modeling_llama  # noqa: F401

    imports, before = time.perf_counter() - started, peak_rss_bytes()
    started, own = time.perf_counter(), time.process_time()
    found = trace(target.workload("bf16-mixed", "native"))
    seconds, own = time.perf_counter() - started, time.process_time() - own
    build, forward = (stage.live for stage in found.stages[:2])
    print(json.dumps({
        "imports": imports, "seconds": seconds, "processor_seconds": own, "before": before,
        "peak": peak_rss_bytes(), "saved": found.saved.total,
        "traced_peak": found.peak.peak.total, "forward": forward.total,
        "weights": build.where(category="parameters").total,
        "unexplained": sum(s.live.unexplained + s.peak.unexplained for s in found.stages),
    }))  # fmt: skip


def llama() -> None:
    command = [sys.executable, __file__, "--llama"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print("Llama-3-8B, 1 x 8192 tokens, bf16-mixed, traced:")
    print(
        f"  {found['seconds']:.1f} s for the trace, {found['imports']:.1f} s of imports before it"
    )
    print(f"  {found['peak'] / 1e9:.2f} GB resident at the most, {found['before'] / 1e9:.2f} GB of "
          "them before it")  # fmt: skip
    print(f"  it says: {found['saved'] / 2**30:.1f} GiB saved for backward, "
          f"{found['traced_peak'] / 2**30:.1f} GiB at the peak\n")  # fmt: skip


def meter(preset: str, rounds: int) -> None:
    target = target_of(Spec(model=preset))
    for recipe in ("fp32", "bf16-mixed"):
        workload = target.workload(recipe)
        own: dict[str, list[float]] = {"bare": [], "metered": []}
        timings, dropped = interleaved(
            {
                "bare": _timed(lambda w=workload: [None for _ in stages(w)], own["bare"]),
                "metered": _timed(lambda w=workload: measure(w), own["metered"]),
            },
            rounds=rounds,
        )
        bare, metered = timings["bare"], timings["metered"]
        pairs = zip(own["bare"][1:], own["metered"][1:], strict=True)  # the first warms up
        processor_time = statistics.median(m / b for b, m in pairs)
        print(f"{preset}, {recipe}: two steps {1e3 * bare.median:.0f} ms, metered "
              f"{1e3 * metered.median:.0f} ms, ratio {ratio(metered, bare):.2f}, of processor "
              f"time {processor_time:.2f} (of {rounds} rounds, {abs(dropped)} had foreign load"
              f"{' and were kept, since all had' if dropped < 0 else ''})")  # fmt: skip


def _timed(run: Callable[[], object], seconds: list[float]) -> Callable[[], None]:
    """`run`, whose processor seconds are appended to `seconds`."""

    def timed() -> None:
        started = time.process_time()
        run()
        seconds.append(time.process_time() - started)

    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--preset", default="novel")
    parser.add_argument("--llama", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.llama:
        trace_llama()
        return
    print(f"{processor()}, Python {sys.version.split()[0]}, Torch {torch.__version__}, "
          f"load {os.getloadavg()[0]:.1f}\n")  # fmt: skip
    llama()
    meter(given.preset, given.rounds)


if __name__ == "__main__":
    main()
