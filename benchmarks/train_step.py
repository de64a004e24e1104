"""One training step of the novel model: fp32, bf16-mixed, fp16-mixed emulated and native.

    python benchmarks/train_step.py [--rounds 7] [--threads 2]

Prints seconds and tokens/s a step, the ratios that the emulation promises, and the peak memory that
tensors take in a step. "fp16 without units" is Torch's native fp16 with oneDNN held to instructions
without fp16 arithmetic, which is what a processor without such units gets; it runs in a process of
its own, at a smaller batch because it is slow, and is set against the other variants at that batch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.model import make_gpt
from floatscope.lab.run.batches import Batch
from floatscope.lab.run.environment import processor
from floatscope.lab.run.plan import TrainConfig
from floatscope.lab.run.train import batch_loss, make_optimizer
from floatscope.lab.run.worker import worker_environment
from floatscope.recipes import recipe
from floatscope.recipes.backend import has_units
from floatscope.recipes.train_step import TrainStep
from measure import interleaved, ratio

VARIANTS = {
    "fp32": ("fp32", "native"),
    "bf16-mixed native": ("bf16-mixed", "native"),
    "bf16-mixed emulated": ("bf16-mixed", "emulated"),
    "fp16-mixed emulated": ("fp16-mixed", "emulated"),
    "fp16-mixed native": ("fp16-mixed", "native"),
}
WITHOUT_UNITS = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
SMALL_BATCH = 2


def step_of(name: str, backend: str, size: int) -> Callable[[], object]:
    config = GPTConfig()
    model = make_gpt(config, seed=1337)
    train = TrainStep(
        model, make_optimizer(model, TrainConfig()), recipe(name), clip_norm=1.0, backend=backend
    )
    ids = torch.randint(
        0, config.vocab_size, (size, config.context + 1), generator=torch.Generator().manual_seed(0)
    )
    batch = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    return lambda: train(lambda m: batch_loss(m, batch))


class PeakMemory(TorchDispatchMode):
    """Follows the bytes of all tensor storages that operations create, and their largest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.current = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        result = func(*args, **(kwargs or {}))
        for t in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(t, Tensor):
                self._follow(t)
        return result

    def _follow(self, t: Tensor) -> None:
        import weakref

        storage = t.untyped_storage()
        key = storage._cdata
        if key not in self.live:
            self.live[key] = storage.nbytes()
            self.current += storage.nbytes()
            self.peak = max(self.peak, self.current)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.current -= self.live.pop(key)


def peak_mib(name: str, backend: str, size: int) -> float:
    """Largest sum of tensor bytes in the second step, model and optimizer states included."""
    with PeakMemory() as memory:
        step = step_of(name, backend, size)
        step()
        memory.peak = memory.current
        step()
    return memory.peak / 2**20


def without_units(rounds: int, threads: int) -> None:
    """Time native fp16 on a processor held to instructions without fp16 arithmetic."""
    command = [sys.executable, __file__, "--child", f"--rounds={rounds}", f"--threads={threads}"]
    env = {**worker_environment(threads), **WITHOUT_UNITS}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    kind = "has no fp16 units" if not result["units"] else "STILL HAS fp16 units: figure not valid"
    print(f"\nbatch {SMALL_BATCH} x 256, processor that {kind} (oneDNN held to AVX512_CORE_BF16):")
    print(f"  fp16-mixed native   {result['native']:8.3f} s")
    print(f"  fp16-mixed emulated {result['emulated']:8.3f} s")
    print(f"  native / emulated   {result['ratio']:8.1f} x   (promised: at least 15)")


def child(rounds: int) -> None:
    timings, _ = interleaved(
        {b: step_of("fp16-mixed", b, SMALL_BATCH) for b in ("native", "emulated")}, rounds=rounds
    )
    result = {
        "units": has_units("fp16", torch.device("cpu")),
        "native": timings["native"].median,
        "emulated": timings["emulated"].median,
        "ratio": ratio(timings["native"], timings["emulated"]),
    }
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.child and "MALLOC_TOP_PAD_" not in os.environ:
        env = worker_environment(arguments.threads)  # what a study's runs have
        os.execve(sys.executable, [sys.executable, *sys.argv], env)
    torch.set_num_threads(arguments.threads)
    if arguments.child:
        child(max(2, arguments.rounds // 3))
        return

    print(f"{processor()}, {arguments.threads} threads, torch {torch.__version__}")
    size, context = 32, GPTConfig().context
    steps = {label: step_of(name, backend, size) for label, (name, backend) in VARIANTS.items()}
    timings, dropped = interleaved(steps, rounds=arguments.rounds)
    base = timings["fp32"]
    print(f"batch {size} x {context}, {len(base.seconds)} rounds counted, {dropped} dropped for")
    print("foreign load (negative: every round was disturbed, all were kept)\n")
    print(f"{'':22}{'s a step':>10}{'tokens/s':>10}{'x fp32':>8}{'peak MiB':>10}")
    peaks = {label: peak_mib(name, backend, size) for label, (name, backend) in VARIANTS.items()}
    for label, timing in timings.items():
        print(
            f"{label:22}{timing.median:10.3f}{size * context / timing.median:10.0f}"
            f"{ratio(timing, base):8.2f}{peaks[label]:10.1f}"
        )
    emulated = ratio(timings["fp16-mixed emulated"], base)
    memory = peaks["fp16-mixed emulated"] / peaks["bf16-mixed native"]
    print(f"\nfp16 emulated / fp32 step        {emulated:6.2f} x   (promised: at most 1.2)")
    print(f"fp16 emulated / bf16 peak memory {memory:6.2f} x   (promised: at most 1.15)")
    without_units(arguments.rounds, arguments.threads)


if __name__ == "__main__":
    main()
