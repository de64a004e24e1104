"""All 2^32 fp32 inputs through the kernels, against Torch's and ml_dtypes' casts.

    python -m conformance.exhaustive [FORMAT ...]

NaNs count as equal whatever their payload; everything else has to agree bit for bit. Where the two
libraries overflow differently, e4m3fn is held to each under its own rules.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from floatscope.rounding import round_to

Bits = NDArray[np.uint32]
Cast = Callable[[NDArray[np.float32]], NDArray[np.float32]]
CHUNK = 1 << 24


def by_torch(dtype: torch.dtype) -> Cast:
    return lambda x: torch.from_numpy(x).to(dtype).float().numpy()


def by_ml_dtypes(dtype: type) -> Cast:
    return lambda x: x.astype(dtype).astype(np.float32)


CASES: dict[str, tuple[str, str, Cast]] = {
    "fp16": ("fp16", "torch-2.13", by_torch(torch.float16)),
    "bf16": ("bf16", "torch-2.13", by_torch(torch.bfloat16)),
    "e5m2": ("e5m2", "torch-2.13", by_torch(torch.float8_e5m2)),
    "e4m3fn": ("e4m3fn", "torch-2.13", by_torch(torch.float8_e4m3fn)),
    "e4m3fn by ml_dtypes": ("e4m3fn", "ml_dtypes", by_ml_dtypes(ml_dtypes.float8_e4m3fn)),
    "e2m1fn": ("e2m1fn", "ml_dtypes", by_ml_dtypes(ml_dtypes.float4_e2m1fn)),
}


def mismatches(case: str, bits: Bits) -> Bits:
    """The inputs on which the kernel and the library of a case differ."""
    form, rules, cast = CASES[case]
    x = bits.view(np.float32)
    with np.errstate(all="ignore"):
        theirs = cast(x)
    ours = round_to(x, form, rules)
    different = ours.view(np.uint32) != theirs.view(np.uint32)
    different &= ~(np.isnan(ours) & np.isnan(theirs))
    return bits[different]


def everything() -> Iterable[Bits]:
    """All fp32 bit patterns, in chunks."""
    for start in range(0, 1 << 32, CHUNK):
        yield np.arange(start, start + CHUNK, dtype=np.uint64).astype(np.uint32)


def main() -> None:
    chosen = sys.argv[1:] or list(CASES)
    print(f"Torch {torch.__version__}, ml_dtypes {ml_dtypes.__version__}")
    failed = False
    for case in chosen:
        started, wrong = time.perf_counter(), 0
        first: Bits = np.empty(0, np.uint32)
        for bits in everything():
            found = mismatches(case, bits)
            wrong += found.size
            first = np.concatenate([first, found])[:5]
        failed |= wrong > 0
        where = f", first at {[hex(b) for b in first]}" if wrong else ""
        took = time.perf_counter() - started
        print(f"{case:22} 2^32 inputs, {wrong} mismatches{where}  ({took:.0f} s)", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
