"""Verbs that need no tensors do not load Torch."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after running `code`."""
    program = f"import sys\n{code}\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("code", ["import floatscope", "import floatscope.cli.main"])
def test_starting_needs_neither_torch_nor_numpy(code: str) -> None:
    assert not loaded(code) & {"torch", "numpy", "pydantic", "duckdb", "scipy", "psutil"}


@pytest.mark.parametrize(
    "code",
    [
        "import floatscope.lab.study.summary, floatscope.cli.study_table",
        "import floatscope.lab.study.execute",
        "from floatscope.lab.study.choose import choose; choose('quick')",
    ],
)
def test_a_study_itself_needs_no_torch(code: str) -> None:
    assert "torch" not in loaded(code)


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["formats"],
        ["formats", "e4m3fn", "--diff-rules", "torch-2.11", "torch-2.13"],
        ["bits", "0.1", "--rounding", "stochastic"],
    ],
    ids=" ".join,
)
def test_verbs_of_formats_import_nothing_heavy(args: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "floatscope.cli.main", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert {"click", "floatscope"} <= modules
    assert not modules & {"torch", "numpy", "pydantic", "duckdb", "psutil", "rich"}


EVERY_KERNEL = """
import gc
import sys
import torch
import floatscope as fs

for dtype in (torch.float64, torch.float32, torch.bfloat16):
    x = torch.ones(2, 32, dtype=dtype)
    fs.round_to(x, "e4m3fn")
    fs.round_to(x, "e4m3fn", rounding="stochastic", key=1)
fs.block_round(x.float(), "mxfp8-e4m3", rule="rceil")
fs.block_round(x, "mxfp8-e4m3", rule="rceil")
fs.decode_from(fs.encode_to(x.float(), "e4m3fn"), "e4m3fn")
fs.Spectrum.of(x.float())

from numba.core.ccallback import CFunc
from numba.core.dispatcher import Dispatcher

kernels = [
    value
    for name, module in [*sys.modules.items()]
    if name.startswith("floatscope.") and ".numba_" in name
    for value in vars(module).values()
    if isinstance(value, Dispatcher)
]
regions = [found for found in gc.get_objects() if isinstance(found, CFunc)]
loaded = sum(region.cache_hits > 0 for region in regions)
print(loaded + sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels))
print(len(regions) - loaded + sum(sum(k.stats.cache_misses.values()) for k in kernels))
"""


def test_kernels_are_compiled_once() -> None:
    """The second process finds every kernel that it calls in the cache."""
    command = [sys.executable, "-c", EVERY_KERNEL]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    hits, misses = map(int, done.stdout.split())
    assert hits >= 6
    assert misses == 0


def test_public_names() -> None:
    import floatscope as fs

    assert fs.recipe("fp32").name == "fp32"
    for name in dir(fs):
        assert getattr(fs, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fs.nothing
