"""Short accumulators: `accumulate` against torch.mm in fp32, on the novel model's products.

    python benchmarks/accumulate.py [--rounds 5] [--threads N] [--wild]

Times as multiples of that of torch.mm in fp32, of the same matrices in the same run; promised: at
most 8. Operands are values of e4m3 unless said otherwise. In fp16, products of short formats (11
significant bits) take a faster loop than those of fp16. With --wild also a matrix with one
infinity, which takes the loops without conditions.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
from torch import Tensor

from floatscope.lab.run.environment import processor
from floatscope.recipes.accumulate import accumulate
from floatscope.recipes.formats_of import ACCUMULATORS
from floatscope.rounding import round_to
from measure import interleaved, ratio

SHAPES = {
    "forward, up": (8192, 256, 688),
    "forward, down": (8192, 688, 256),
    "weight gradient": (256, 8192, 688),
}
"""Products (M, K, N) of the feed-forward layers, at 8192 tokens a batch."""
PROMISED = 8


def variants(a: Tensor, b: Tensor, wild: bool) -> dict[str, Callable[[], object]]:
    """torch.mm first, then what is compared with it."""
    left, right = round_to(a, "e4m3fn"), round_to(b, "e4m3fn")
    halves = a.half(), b.half()
    calls: dict[str, Callable[[], object]] = {"torch.mm": lambda: torch.mm(left, right)}
    for name in ACCUMULATORS[1:]:
        calls[name] = lambda name=name: accumulate(left, right, name)
    calls["hopper-fp8, of fp16"] = lambda: accumulate(*halves, "hopper-fp8")
    calls["fp16, of fp16"] = lambda: accumulate(*halves, "fp16")
    if wild:
        infinite = left.clone()
        infinite[0, 0] = math.inf
        for name in ACCUMULATORS[1:]:
            calls[f"{name}, wild"] = lambda name=name: accumulate(infinite, right, name)
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--wild", action="store_true", help="operands that are not finite, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{processor()}; {options.threads} threads")
    generator = torch.Generator().manual_seed(0)
    for title, (m, k, n) in SHAPES.items():
        a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
        timings, dropped = interleaved(variants(a, b, options.wild), rounds=options.rounds)
        print(f"\n{title}: {m} x {k} x {n}")
        print(f"{options.rounds} rounds, {dropped} dropped for foreign load (negative: all kept)")
        limit = timings["torch.mm"]
        for name, timing in timings.items():
            speed = 2e-9 * m * k * n / timing.median
            wanted = f"promised {PROMISED}" if name in ACCUMULATORS else ""
            print(f"  {name:28}{1e3 * timing.median:9.1f} ms{speed:8.1f} GFLOP/s"
                  f"{ratio(timing, limit):8.2f}  {wanted}")  # fmt: skip


if __name__ == "__main__":
    main()
