"""Demonstrations 1 and 2, which arithmetic decides, against Torch's own types."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction

import pytest
import torch

from floatscope.errors import FormatError
from floatscope.lab.lecture.demo1_formats import formats
from floatscope.lab.lecture.demo2_swallowed import swallowed
from floatscope.lab.lecture.predict_stall import predicted_stall
from floatscope.lab.lecture.records import Swallowed
from floatscope.rounding import round_to

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def test_format_table() -> None:
    shown = [
        (f"{int(r.signed)}+{r.exponent_bits}+{r.fraction_bits}", r.max, r.smallest_normal,
         r.smallest, r.eps, r.to_zero, r.overflows)
        for r in formats().rows
    ]  # fmt: skip
    assert shown == [
        ("1+8+23", "≈3.403e38", "2^-126", "2^-149", "2^-23", "≤ 2^-150", "≥ ≈3.403e38"),
        ("1+5+10", "65504", "2^-14", "2^-24", "2^-10", "≤ 2^-25", "≥ 65520"),
        ("1+8+7", "≈3.39e38", "2^-126", "2^-133", "2^-7", "≤ 2^-134", "≥ ≈3.396e38"),
    ]


@pytest.mark.parametrize("name", DTYPES)
def test_format_table_is_that_of_torch(name: str) -> None:
    (row,), info = formats([name]).rows, torch.finfo(DTYPES[name])
    assert math.ldexp(2 - math.ldexp(1, -row.fraction_bits), row.emax) == info.max
    assert math.ldexp(1.0, row.emin) == info.tiny
    assert math.ldexp(1.0, -row.fraction_bits) == info.eps


@pytest.mark.parametrize("name", DTYPES)
def test_smallest_is_where_halving_ends(name: str) -> None:
    """As the document finds it: halve the smallest normal value until zero."""
    (row,) = formats([name]).rows
    value = torch.tensor(torch.finfo(DTYPES[name]).tiny, dtype=DTYPES[name])
    while (value / 2).item() > 0:
        value = value / 2
    assert value.item() == math.ldexp(1.0, row.min_octave)


def test_other_formats() -> None:
    assert [row.name for row in formats(["e4m3fn", "e5m2", "e3m4"]).rows] == [
        "e4m3fn", "e5m2", "e3m4",
    ]  # fmt: skip
    for wrong in ("mxfp4", "int8", "e8m0fnu"):
        with pytest.raises(FormatError, match=f"{wrong} is none"):
            formats([wrong])
    with pytest.raises(FormatError, match="several things"):
        formats(["fp8"])


@pytest.fixture(scope="module")
def found() -> Swallowed:
    return swallowed()


def test_sums(found: Swallowed) -> None:
    fp32, fp16, bf16 = found.sums
    assert f"{fp32.result:.8g}" == "1.0000535"
    assert (fp32.stalled_after, fp32.predicted_after, fp32.predicted_value) == (None, None, 2048)
    for s, after, value in ((fp16, 2181, 0.25), (bf16, 273, 0.03125)):
        assert (s.stalled_after, s.predicted_after) == (after, after)
        assert s.result == s.predicted_value == value


@pytest.mark.parametrize("name", DTYPES)
def test_sums_are_those_of_torch(found: Swallowed, name: str) -> None:
    addend = torch.tensor(1e-4, dtype=DTYPES[name])
    total = torch.zeros((), dtype=DTYPES[name])
    trace = {0: 0.0}
    for n in range(1, 10_001):
        total = total + addend
        trace[n] = total.item()
    (ours,) = [s for s in found.sums if s.format == name]
    assert ours.result == trace[10_000]
    assert all(trace[n] == value for n, value in ours.trace)
    if ours.stalled_after is not None:
        assert trace[ours.stalled_after - 1] != trace[ours.stalled_after] == ours.result


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "fp16", "bf16", "e5m4"])
@pytest.mark.parametrize("increment", [1.0, 0.75, 0.0625, 0.1015625, 3.0])
def test_predicted_stall_is_where_sums_stall(name: str, increment: float) -> None:
    addend = round_to(torch.tensor(increment, dtype=torch.float64), name)
    total, after = torch.zeros_like(addend), 0
    while (new := round_to(total + addend, name)) != total:
        total, after = new, after + 1
    assert predicted_stall(name, addend.item()) == (after, total.item())


def test_predicted_stall_is_quick_where_sums_are_long() -> None:
    additions, value = predicted_stall("fp32", float(Fraction(1, 3).limit_denominator(2**20)))
    assert value == 2.0**23
    assert additions > 10**7


def test_remedies(found: Swallowed) -> None:
    right = {s.format: 10_000 * s.increment for s in found.sums}
    results = {(r.format, r.name): r for r in found.remedies}
    for form in ("fp16", "bf16"):
        assert results[form, "fp32"].result == pytest.approx(right[form], rel=1e-4)
        assert results[form, "pairwise"].result == pytest.approx(right[form], rel=0.005)
        half_ulp = {"fp16": 2.0**-11, "bf16": 2.0**-8}[form]
        assert abs(results[form, "kahan"].result - right[form]) <= 2 * half_ulp
        chance = results[form, "stochastic"]
        assert chance.repetitions == 64
        # unbiased: the mean of 64 lies within 4 of its standard errors
        assert abs(chance.result - right[form]) < 4 * chance.spread / 8


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_kahan_is_that_of_torch(found: Swallowed, name: str) -> None:
    addend = torch.tensor(1e-4, dtype=DTYPES[name])
    total, excess = torch.zeros_like(addend), torch.zeros_like(addend)
    for _ in range(10_000):
        corrected = addend - excess
        new = total + corrected
        total, excess = new, (new - total) - corrected
    (ours,) = [r for r in found.remedies if (r.format, r.name) == (name, "kahan")]
    assert ours.result == total.item()


def test_nine_answers(found: Swallowed) -> None:
    answers = {(a.delta, a.format): a.swallowed for a in found.added}
    assert answers == {
        (1e-2, "fp32"): False, (1e-2, "fp16"): False, (1e-2, "bf16"): False,
        (1e-3, "fp32"): False, (1e-3, "fp16"): False, (1e-3, "bf16"): True,
        (1e-4, "fp32"): False, (1e-4, "fp16"): True, (1e-4, "bf16"): True,
    }  # fmt: skip
    for added in found.added:
        dtype = DTYPES[added.format]
        one = torch.ones((), dtype=dtype) + torch.tensor(added.delta, dtype=dtype)
        assert added.result == one.item()
        assert added.half_ulp == torch.finfo(dtype).eps / 2


def test_a_weight_of_one_does_not_move_in_bf16() -> None:
    one = torch.ones((), dtype=torch.float64)
    for update in (2.0**-9, -(2.0**-9), 1e-3, -1e-3, 2.0**-8):
        assert round_to(one + update, "bf16") == 1
    for update in (-(2.0**-9) - 2.0**-20, 2.0**-8 + 2.0**-20):
        assert round_to(one + update, "bf16") != 1


def test_the_first_demonstration_needs_no_tensors() -> None:
    command = [
        sys.executable, "-X", "importtime", "-m", "floatscope.cli.main", "lecture", "1",
        "--lang", "zh",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert "rich" in modules
    assert not modules & {"torch", "numpy", "pydantic", "numba", "vl_convert", "psutil"}
    assert "65504" in done.stdout
