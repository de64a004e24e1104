"""The cache of compiled kernels: right for several processes that fill it at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = """
import sys
from floatscope.compiled import njit

def part(constant):
    @njit()
    def times(x):
        return x * constant
    return times

def whole(constant):
    times = part(constant)
    @njit()
    def of_three(x):
        total = 0.0
        for i in range(3):
            total += times(x + i)
        return total
    return of_three

KERNELS = {number: whole(number) for number in (2.0, 3.0, 5.0, 7.0)}

def check(order):
    for number in order:
        found = KERNELS[number](1.0)
        assert found == 6.0 * number, (number, found)
        assert KERNELS[number](1) == 6 * number

if __name__ == "__main__":
    check([float(number) for number in sys.argv[1:]])
    hits = sum(sum(kernel.stats.cache_hits.values()) for kernel in KERNELS.values())
    print(hits)
"""
ORDERS = ("2 3 5 7", "7 5 3 2", "3 7 2 5", "5 2 7 3")


def start(path: Path, order: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(path), *order.split()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def hits(process: subprocess.Popen[str]) -> int:
    output, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return int(output)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return path


def test_processes_that_compile_at_once_do_not_get_each_others_code(kernels: Path) -> None:
    for process in [start(kernels, order) for order in ORDERS]:
        hits(process)
    for order in ORDERS:  # four kernels for two types, compiled by whoever came first
        assert hits(start(kernels, order)) == 8


def test_another_source_is_compiled_anew(kernels: Path) -> None:
    assert hits(start(kernels, "2 3")) == 0
    assert hits(start(kernels, "2 3")) == 4
    kernels.write_text(KERNELS.replace("x * constant", "constant * x"))
    assert hits(start(kernels, "2 3")) == 0
