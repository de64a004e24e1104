"""Rounding at the speed of memory: `round_to`, `encode_to` and `block_round` against a plain copy.

    python benchmarks/rounding.py [--rounds 9] [--size 24] [--libraries]

Throughputs as multiples of a copy's, over 2^size fp32 values in the same run: of `out.copy_(x)` for
calls with out=, of `x.clone()` for those without. Promised at 2^24 values: nearest-even to any
format 0.9, with a receipt too; blocks along rows 0.6, down columns 0.4; stochastic 0.8; encoding
1.2; a whole call on 256 values under 20 microseconds. With --libraries, Torch's own casts,
ml_dtypes, gfloat and torchao beside ours, on 2^20 values.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from floatscope.formats import FLOATS
from floatscope.lab.run.environment import processor
from floatscope.rounding import Receipt, block_round, encode_to, round_to
from measure import Timing, interleaved, ratio

Variants = dict[str, tuple[Callable[[], object], float | None]]
NEAREST = [form.name for form in FLOATS if form.name not in ("fp64", "fp32")] + ["int8"]
BATCH_SECONDS = 0.15  # a batch is long beside the clock of the machine's load


def with_out(x: Tensor) -> Variants:
    """Calls that write to a given output, with the multiple of a copy that is promised."""
    out = torch.empty_like(x)
    matrix, result = x.view(4096, -1), out.view(4096, -1)
    variants: Variants = {"out.copy_(x)": (lambda: out.copy_(x), None)}
    for name in NEAREST:
        variants[f"{name}"] = (lambda name=name: round_to(x, name, out=out), 0.9)
    for name in ("e4m3fn", "bf16"):
        receipt = Receipt()
        variants[f"{name}, receipt"] = (
            lambda name=name, receipt=receipt: round_to(x, name, out=out, receipt=receipt),
            0.9,
        )
        variants[f"{name}, stochastic"] = (
            lambda name=name: round_to(x, name, out=out, rounding="stochastic", key=1),
            0.8,
        )
        variants[f"{name}, up"] = (
            lambda name=name: round_to(x, name, out=out, rounding="up"),
            None,
        )
    for name in ("e4m3fn", "e2m1fn", "bf16"):
        codes = torch.empty(x.shape, dtype=encode_to(x[:1], name).dtype)
        variants[f"{name}, encode"] = (
            lambda name=name, codes=codes: encode_to(x, name, out=codes),
            1.2,
        )
    for name, rule in (("mxfp8-e4m3", "floor"), ("mxfp8-e4m3", "rceil"), ("mxfp4", None),
                       ("nvfp4", None), ("fp8-1x128", None)):  # fmt: skip
        for axis, where, promise in ((-1, "rows", 0.6), (-2, "columns", 0.4)):
            variants[f"{name} {rule or ''} {where}".replace("  ", " ")] = (
                lambda name=name, rule=rule, axis=axis: block_round(
                    matrix, name, rule=rule, axis=axis, out=result
                ),
                promise,
            )
    for name in ("fp8-tensor", "fp8-rowwise", "fp8-128x128"):
        variants[name] = (lambda name=name: block_round(matrix, name, out=result), None)
    return variants


def without_out(x: Tensor) -> Variants:
    """Calls that allocate their result, as a clone does."""
    variants: Variants = {"x.clone()": (lambda: x.clone(), None)}
    for name in ("e4m3fn", "bf16", "e2m1fn"):
        variants[name] = (lambda name=name: round_to(x, name), 0.9)
    return variants


def libraries(x: Tensor) -> Variants:
    """The same work by others, each over there and back to fp32 values."""
    import gfloat
    from gfloat.formats import format_info_ocp_e4m3

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
    array, matrix = x.numpy(), x.view(1024, -1)

    def torchao_mx() -> Tensor:
        mode = ScaleCalculationMode.RCEIL
        scales, codes = to_mx(matrix, torch.float8_e4m3fn, 32, mode)
        return codes.float().view(1024, -1, 32) * scales.float()[..., None]

    return {
        "e4m3fn, ours": (lambda: round_to(x, "e4m3fn"), None),
        "e4m3fn, Torch": (lambda: x.to(torch.float8_e4m3fn).float(), None),
        "e4m3fn, ml_dtypes": (
            lambda: array.astype(ml_dtypes.float8_e4m3fn).astype(np.float32),
            None,
        ),
        "e4m3fn, gfloat": (lambda: gfloat.round_ndarray(format_info_ocp_e4m3, array), None),
        "bf16, ours": (lambda: round_to(x, "bf16"), None),
        "bf16, Torch": (lambda: x.bfloat16().float(), None),
        "bf16, ml_dtypes": (lambda: array.astype(ml_dtypes.bfloat16).astype(np.float32), None),
        "e2m1fn, ours": (lambda: round_to(x, "e2m1fn"), None),
        "e2m1fn, ml_dtypes": (
            lambda: array.astype(ml_dtypes.float4_e2m1fn).astype(np.float32),
            None,
        ),
        "mxfp8, ours": (lambda: block_round(matrix, "mxfp8-e4m3", rule="rceil"), None),
        "mxfp8, torchao": (torchao_mx, None),
    }


def batched(call: Callable[[], object]) -> tuple[Callable[[], None], int]:
    """A batch of calls that takes about BATCH_SECONDS."""
    call()
    timing, _ = interleaved({"once": call}, rounds=3)
    count = max(1, round(BATCH_SECONDS / timing["once"].median))

    def batch() -> None:
        for _ in range(count):
            call()

    return batch, count


def measured(variants: Variants, rounds: int) -> dict[str, Timing]:
    """Seconds of a call, interleaved round by round."""
    batches = {name: batched(call) for name, (call, _) in variants.items()}
    timings, dropped = interleaved({name: b for name, (b, _) in batches.items()}, rounds=rounds)
    print(f"{rounds} rounds, {dropped} dropped for foreign load (negative: all kept)")
    for name, timing in timings.items():
        timing.seconds = [s / batches[name][1] for s in timing.seconds]
    return timings


def report(title: str, variants: Variants, rounds: int, size: int) -> None:
    """Print each variant's throughput as a multiple of the first one's."""
    print(f"\n{title}")
    timings = measured(variants, rounds)
    limit = next(iter(timings.values()))
    for name, timing in timings.items():
        promise = variants[name][1]
        wanted = f"promised {promise}" if promise else ""
        speed = 4 * size / timing.median / 1e9
        print(f"  {name:28}{1e3 * timing.median:9.2f} ms{speed:7.1f} GB/s"
              f"{ratio(limit, timing):8.2f}  {wanted}")  # fmt: skip


def small_calls(rounds: int) -> None:
    x = torch.randn(256)
    out = torch.empty_like(x)
    calls: Variants = {
        "x.clone()": (lambda: x.clone(), None),
        "round_to, 256 values": (lambda: round_to(x, "e4m3fn"), None),
        "round_to, out=": (lambda: round_to(x, "e4m3fn", out=out), None),
        "block_round, 256 values": (lambda: block_round(x, "mxfp8-e4m3"), None),
    }
    print("\nwhole calls on 256 values (promised: under 20 microseconds)")
    for name, timing in measured(calls, rounds).items():
        print(f"  {name:28}{1e6 * timing.median:9.1f} microseconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--size", type=int, default=24, help="log2 of the number of values")
    parser.add_argument("--libraries", action="store_true")
    options = parser.parse_args()
    print(f"{processor()}; {torch.get_num_threads()} threads; fp32 values from N(0, 1)")
    x = torch.randn(1 << options.size, generator=torch.Generator().manual_seed(0))
    report("with out=, as multiples of out.copy_(x)", with_out(x), options.rounds, x.numel())
    report("without out=, of x.clone()", without_out(x), options.rounds, x.numel())
    small_calls(options.rounds)
    if options.libraries:
        few = x[: 1 << 20].contiguous()
        report("libraries, there and back, of ours in e4m3fn", libraries(few), options.rounds,
               few.numel())  # fmt: skip


if __name__ == "__main__":
    main()
