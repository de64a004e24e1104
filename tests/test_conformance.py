"""The kernels against other libraries on many inputs, and the vectors that others can use."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conformance.exhaustive import CASES, everything, mismatches
from conformance.inputs import decisive, stratified

from floatscope.formats import FloatFormat
from floatscope.rounding import block_round, decode_from, encode_to
from tests.test_formats import by_name

ROOT = Path(__file__).parent.parent
SAMPLE = 10_000_000


@pytest.mark.parametrize("case", CASES)
def test_a_sample_with_every_tie_agrees(case: str) -> None:
    form = by_name(CASES[case][0])
    bits = stratified(form, SAMPLE)
    assert bits.size > SAMPLE
    assert mismatches(case, bits).size == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_all_fp32_inputs_agree(case: str) -> None:
    assert sum(mismatches(case, bits).size for bits in everything()) == 0


def test_a_wrong_cast_would_be_found() -> None:
    """Ties away instead of to even, as some libraries do."""
    CASES["wrong"] = ("e4m3fn", "torch-2.13", lambda x: x)
    try:
        assert mismatches("wrong", decisive(by_name("e4m3fn"))).size > 200
    finally:
        del CASES["wrong"]


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e2m1fn", "e8m0fnu"])
def test_vectors_are_what_the_kernels_give(name: str, tmp_path: Path) -> None:
    form = by_name(name)
    generate(tmp_path, name)
    rows = table(tmp_path / f"{name}.codes.csv")
    assert len(rows) == form.num_codes
    values = decode_from(torch.tensor([int(r["code"], 16) for r in rows]), form)
    expected = torch.tensor([float.fromhex(r["value"]) for r in rows])
    assert torch.equal(values.nan_to_num(-9), expected.nan_to_num(-9))
    rows = table(tmp_path / f"{name}.rounding.csv")
    modes = {r["rounding"] for r in rows}
    assert len(modes) == 6
    for mode in modes:
        chosen = [r for r in rows if r["rounding"] == mode]
        bits = np.array([int(r["input"], 16) for r in chosen], np.uint32)
        codes = encode_to(torch.from_numpy(bits.view(np.float32)), form, rounding=mode)  # type: ignore[arg-type]
        there = [int(r["code"], 16) for r in chosen]
        assert same_codes(codes.tolist(), there, form)


def same_codes(ours: list[int], theirs: list[int], form: FloatFormat) -> bool:
    """Equal, but for the sign of NaNs."""
    nan = {form.nan_code, (form.nan_code or 0) | form.sign_mask} if form.has_nan else set()
    return all(a == b or (a in nan and b in nan) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8-e4m3", "nvfp4", "fp8-1x128"])
def test_block_vectors_are_what_the_kernels_give(name: str, tmp_path: Path) -> None:
    generate(tmp_path, name)
    rows = table(tmp_path / f"{name}.blocks.csv")
    count = 1 + max(int(r["block"]) for r in rows)
    x = np.array([int(r["input"], 16) for r in rows], np.uint32).view(np.float32)
    ours = block_round(torch.from_numpy(x.reshape(count, -1)), name).values.flatten().numpy()
    for result, row in zip(ours, rows, strict=True):
        if row["value"] == "nan":
            assert np.isnan(result)
        else:
            assert result.view(np.uint32) == int(row["value"], 16)


def generate(folder: Path, name: str) -> None:
    command = [sys.executable, "-m", "conformance.vectors", str(folder), name]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
