"""The Triton tally, without a GPU: interpreted, equal to the Torch one; compiled for CUDA.

`python -m tests.test_spectrum_triton interpreted` and `... compiled` are the processes that the
tests start: TRITON_INTERPRET decides once, when Triton is imported.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from floatscope.rounding.cast import DTYPES
from floatscope.spectrum.anywhere import tally_torch
from floatscope.spectrum.tally import FP32, OTHERS
from tests.apart import run
from tests.test_spectrum_kernels import edges, every_code, numbers, oracle
from tests.test_triton import Driver


@pytest.mark.slow
def test_interpreted_kernel_equals_the_torch_operations(tmp_path: Path) -> None:
    assert int(run("tests.test_spectrum_triton", "interpreted", tmp_path, "1")) == 25


@pytest.mark.slow
def test_kernel_compiles_for_cuda(tmp_path: Path) -> None:
    assert int(run("tests.test_spectrum_triton", "compiled", tmp_path, "0")) == 4


def compare(x: Tensor) -> int:
    """One comparison."""
    from floatscope.spectrum.kernels.triton_tally import tally_triton

    found, expected = tally_triton(x), tally_torch(x, FP32)
    assert torch.equal(found, expected), (x, (found - expected).nonzero())
    assert expected[: FP32.num_cells].sum() + expected[-len(OTHERS) : -1].sum() == x.numel()
    return 1


def all_numbers() -> int:
    """Every code of 16 and of 8 bits, and the edges of fp32."""
    done = compare(edges(torch.float32))
    for dtype in DTYPES:
        if dtype.itemsize <= 2:
            done += compare(every_code(dtype))
    return done


def sizes(kernel: Any) -> int:
    """Blocks, programs and tables that are partly used, and several launches."""
    done = sum(compare(numbers(torch.float32, n)) for n in (0, 1, 1023, 1024, 1025))
    done += compare(numbers(torch.bfloat16, 1500)[1:])  # an address that is no multiple of 16
    kernel.BLOCK, kernel.BLOCKS, kernel.SHARE = 512, 2, 3
    done += sum(compare(numbers(torch.float16, n)) for n in (1023, 1024, 1025, 3072, 3073))
    kernel.PIECE = 4000
    done += sum(compare(numbers(torch.float32, n)) for n in (3999, 4000, 4001, 9000))
    return done + compare(numbers(torch.float8_e5m2, 9000))


def full_table(kernel: Any, most: int) -> int:
    """As much of one cell as a table takes, with the largest square."""
    largest = torch.full((1,), 2 - 2.0**-23)
    found = kernel.tally_triton(largest.expand(most).contiguous())
    one = oracle(largest)
    assert torch.equal(found[:-1], one[:-1] * most)
    return int(found[-1] == one[-1])


def interpreted() -> int:
    from floatscope.spectrum.kernels import triton_tally as kernel

    # Each step of each program takes a millisecond in the interpreter, whatever its width.
    kernel.OCTAVES_EACH, kernel.TABLES_AT_ONCE = 64, 2
    given = kernel.BLOCK, kernel.BLOCKS, kernel.SHARE
    kernel.BLOCK, kernel.SHARE = 1 << 14, 100  # one table for all
    done = all_numbers() + full_table(kernel, math.prod(given))
    kernel.BLOCK, kernel.BLOCKS, kernel.SHARE = given
    return done + sizes(kernel)


def compiled() -> int:
    """How many kernels all dtypes need; all are machine code for compute capability 8.0."""
    from triton.runtime import driver

    from floatscope.spectrum.kernels import triton_tally as kernel

    device: Any = Driver()
    driver.set_active(device)
    x = torch.zeros(1 << 18)
    for dtype in DTYPES:
        if dtype != torch.float64:
            kernel.tally_triton(x.to(dtype))
    assert len(device.launches) == 2 * (len(DTYPES) - 1)
    kernels = [
        *kernel._count.device_caches[0][0].values(),
        *kernel._collect.device_caches[0][0].values(),
    ]
    for one in kernels:
        code = one.asm["ptx"]
        assert one.asm["cubin"]
        assert "ftz" not in code, "subnormals would be flushed"
        if "_count" in one.name:
            assert "red.global.gpu.relaxed.add.u64" in code, "an addition would wait for its answer"
    return len(kernels)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(interpreted() if sys.argv[1] == "interpreted" else compiled())
