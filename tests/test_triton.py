"""The Triton kernel, without a GPU: interpreted, equal to the CPU kernels; compiled for CUDA.

`python -m tests.test_triton interpreted` and `... compiled` are the processes that the tests start:
TRITON_INTERPRET decides once, when Triton is imported.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.formats import FloatFormat, Specials
from floatscope.rounding import PRESETS, Overflow, rules_for, tensors
from floatscope.rounding.anywhere import round_anywhere
from floatscope.rounding.cast import DTYPES, Cast, cast_to, check_holds
from floatscope.rounding.on_cpu import round_cpu
from floatscope.rounding.rules import NanPolicy, NegativePolicy, ZeroPolicy
from tests.apart import WHY, run
from tests.test_round_to import MODES, SCALARS, equal, holding, points

KEY = 0xFEDC_BA98_7654_3210
WIDTHS = [torch.float32, torch.float64]
LOW = FloatFormat("low", exponent_bits=7, fraction_bits=2, bias=125, specials=Specials.IEEE)
"""Its smallest value is fp32's smallest normal one, so that subnormal inputs round to it."""


@pytest.mark.slow
def test_interpreted_kernel_equals_the_cpu_kernels(tmp_path: Path) -> None:
    assert int(run("tests.test_triton", "interpreted", tmp_path, "1")) > 700


@pytest.mark.slow
def test_kernel_compiles_for_cuda(tmp_path: Path) -> None:
    assert int(run("tests.test_triton", "compiled", tmp_path, "0")) == 8


def test_which_backend_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tensors.backend_of(torch.device("cpu")) is round_cpu
    assert tensors.backend_of(torch.device("meta")) is round_anywhere
    monkeypatch.setattr(tensors, "find_spec", lambda name: None)
    assert tensors.backend_of(torch.device("cuda")) is round_anywhere
    monkeypatch.undo()
    pytest.importorskip("triton", reason=WHY)
    assert tensors.backend_of(torch.device("cuda")).__name__ == "round_triton"


def few(x: Tensor) -> Tensor:
    """Some of `points`: the ends of the format among them, and all special inputs."""
    half = x[: len(x) // 2]
    near, spread, special = half[:-505].view(3, -1), half[-505:-5:10], half[-5:]
    some = near[:, :: max(1, near.shape[1] // 30)].reshape(-1)
    few = torch.cat([some, near[:, -8:].reshape(-1), spread, special])
    return torch.cat([few, -few])


def compare(x: Tensor, cast: Cast, dtype: torch.dtype, expected: Any = round_cpu, **at: int) -> int:
    """One comparison, of values and counts."""
    from floatscope.rounding.kernels.triton_elements import round_triton

    ours, theirs = torch.empty(x.shape, dtype=dtype), torch.empty(x.shape, dtype=dtype)
    found, counts = round_triton(x, ours, cast, **at), expected(x, theirs, cast, **at)
    equal(ours.double(), theirs.double())
    assert found.tolist() == counts.tolist(), (cast, found, counts)
    return 1


def stochastic(cast: Cast, name: str = "") -> Cast:
    return replace(cast, key=KEY, random_bits=7 if len(name) % 2 else 32)


def all_formats() -> int:
    done = 0
    for form, width in itertools.product([*SCALARS, LOW], WIDTHS):
        x = few(points(form, width))
        for mode in MODES:
            cast = stochastic(cast_to(form, None, mode, None, None), form.name)
            done += compare(x, cast, holding(form, width))
    return done


def all_rules() -> int:
    casts = []
    for form, preset in itertools.product(SCALARS, PRESETS[1:]):
        try:
            casts.append(Cast(form, rules_for(form, preset)))
        except FormatError:
            continue
    by_name = {form.name: form for form in SCALARS}
    for name, mode, overflow, flush in itertools.product(
        ("e5m2", "e4m3fn", "e2m1fn", "int8", "e8m0fnu"), MODES[::3], get_args(Overflow), (0, 1)
    ):
        try:
            cast = cast_to(name, None, mode, overflow, bool(flush))
        except FormatError:
            continue
        casts.append(stochastic(cast))
    standard = rules_for(by_name["e8m0fnu"])
    for negative, zero in itertools.product(get_args(NegativePolicy), get_args(ZeroPolicy)):
        casts.append(Cast(by_name["e8m0fnu"], replace(standard, negative=negative, zero=zero)))
    for nan in get_args(NanPolicy)[1:]:
        form = by_name["e2m1fn"]
        casts.append(Cast(form, replace(rules_for(form), nan=nan)))
    inputs = {form.name: few(points(form, torch.float32)) for form in {c.form for c in casts}}
    return sum(compare(inputs[c.form.name], c, holding(c.form, torch.float32)) for c in casts)


def all_dtypes() -> int:
    done = 0
    for name, source, target in itertools.product(
        ("e5m2", "fp16", "bf16", "fp32", "e8m0fnu", "int4"), DTYPES, DTYPES
    ):
        form = next(form for form in SCALARS if form.name == name)
        try:
            check_holds(target, form)
        except FormatError:
            continue
        x = few(points(form, torch.float32)).to(source)
        mode = MODES[done % len(MODES)]
        done += compare(x, stochastic(cast_to(form, None, mode, None, None)), target)
    return done


def places() -> int:
    """Sizes, several blocks a program, offsets, and results that overwrite their inputs."""
    from floatscope.rounding.kernels import triton_elements

    x = torch.randn(5000, generator=torch.Generator().manual_seed(1)) * 200
    casts = [stochastic(cast_to("e4m3fn", None, m, None, None)) for m in MODES]
    triton_elements.PROGRAMS, triton_elements.PIECE = 2, 1500
    done = sum(compare(x[:n], casts[-1], x.dtype) for n in (0, 1, 1023, 1024, 1025, 5000))
    done += compare(x.view(50, 100).t(), casts[0], x.dtype, round_anywhere)
    done += compare(x.to(torch.float8_e5m2), casts[-1], x.dtype)
    for offset in (2**32 - 1500, 2**32 - 1, 2**32, 5 * 2**32 - 7, 2**62 + 2**32 - 77):
        done += compare(x[:2000], casts[-1], x.dtype, round_anywhere, offset=offset)
    for cast in casts:
        copy, expected = x.clone(), torch.empty_like(x)
        triton_elements.round_triton(copy, copy, cast)
        round_cpu(x, expected, cast)
        equal(copy, expected)
        done += 1
    return done


class Driver:
    """Stands for a CUDA device: the whole way to the launch is gone, and nothing runs."""

    def __init__(self) -> None:
        from triton.backends.compiler import GPUTarget

        self.target, self.utils, self.launches = GPUTarget("cuda", 80, 32), self, []

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 48 << 10}

    def load_binary(self, *args: Any) -> tuple[None, None, int, int, int]:
        return None, None, 0, 0, 1024

    def launcher_cls(self, *args: Any) -> Any:
        return lambda *launched: self.launches.append(launched)


def compiled() -> int:
    """How many kernels these casts need; all are machine code for compute capability 8.0."""
    from triton.runtime import driver

    from floatscope.rounding.kernels import triton_elements

    device: Any = Driver()
    driver.set_active(device)
    half, single, double = (torch.zeros(4096, dtype=t) for t in (torch.float16, *WIDTHS))
    one = torch.zeros(1)
    for name, mode, x, out in (
        ("e5m2", "nearest-even", single, single),
        ("e3m4", "nearest-even", single, single),  # the same kernel: only numbers differ
        ("e4m3b11fnuz", "up", single, single),
        ("e4m3fn", "stochastic", single, single),
        ("bf16", "stochastic", double, half.to(torch.bfloat16)),
        ("e8m0fnu", "to-odd", half, double),
        ("int8", "down", half, half),
        ("e5m2", "nearest-even", one, one),
    ):
        cast = stochastic(cast_to(name, None, mode, None, None))
        triton_elements.round_triton(x, out, cast)
    many = one.expand(1 << 32)  # a size of 64 bits
    triton_elements._launch(many, many, one, cast, torch.float32, 0)
    assert len(device.launches) == 9
    kernels = triton_elements._round_spans.device_caches[0][0].values()
    for kernel in kernels:
        code = kernel.asm["ptx"]
        assert kernel.asm["cubin"]
        assert "ftz" not in code, "subnormals would be flushed"
        assert "fma" not in code, "a product and a sum would be rounded as one"
    return len(kernels)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "interpreted":
        print(all_formats() + all_rules() + all_dtypes() + places())
    else:
        print(compiled())
