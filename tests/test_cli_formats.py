"""`floatscope formats`: exact numbers, printed as such."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.cli import edges
from floatscope.formats.show import exact_decimal, shown
from floatscope.rounding import PRESETS, Overflow
from floatscope.rounding.rules import NanPolicy, NegativePolicy, ZeroPolicy

ALL_RULES = f"Choose from: {', '.join(PRESETS)}."


def formats(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "floatscope.cli.main", "formats", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_whole_catalogue() -> None:
    lines = formats().stdout.splitlines()
    fp16 = next(line.split() for line in lines if line.startswith("fp16"))
    assert fp16[:8] == ["fp16", "1+5+10", "15", "65504", "2^-14", "2^-24", "2^-10", "40"]
    assert any(line.startswith("nvfp4") and "e4m3fn × fp32" in line for line in lines)


def test_json() -> None:
    (bf16,) = json.loads(formats("bf16", "--json").stdout)
    assert bf16["smallest"] == "2^-133"
    assert bf16["max"].startswith("≈3.38953e38")
    assert bf16["source"]


def test_what_a_cast_does_at_the_edges() -> None:
    shown_text = formats().stdout
    rows = {line.split()[0]: line.split() for line in shown_text.splitlines() if line.strip()}
    assert rows["fp16"][-3:] == ["inf", "inf", "NaN"]
    assert rows["e4m3fn"][-3:] == ["NaN", "NaN", "NaN"]
    assert rows["e2m1fn"][-3:] == ["max", "max", "error"]
    assert rows["e8m0fnu"][-5:] == ["NaN"] * 5
    assert "overflow to  inf to  NaN to  negative to  0 to" in shown_text
    assert "int8  8     127  -128  1     max or min   max or min  error" in shown_text
    others = ", ".join(PRESETS[1:])
    last = f'Overflow, inf and NaN by the rules "standard"; others with --rules: {others}.'
    assert shown_text.endswith(f"\n\n{last}\n")


def test_rules_of_a_library() -> None:
    facts = json.loads(formats("--rules", "te", "--json").stdout)
    columns = ("name", "rules", "overflow to", "inf to", "NaN to")
    assert [[fact[column] for column in columns] for fact in facts] == [
        ["e4m3fn", "te", "max", "max", "NaN"],
        ["e5m2", "te", "max", "max", "NaN"],
        ["e2m1fn", "te", "max", "max", "0"],
    ]
    (e8m0fnu,) = json.loads(formats("e8m0fnu", "--rules", "torch-2.13", "--json").stdout)
    assert (e8m0fnu["negative to"], e8m0fnu["0 to"]) == ("magnitude", "smallest")
    beside = formats("--diff", "e4m3fn", "e2m1fn", "--rules", "te").stdout
    assert "NaN to           NaN" in beside
    assert "overflow to" not in beside  # both saturate
    assert 'by the rules "te"; others with --rules: standard, torch-2.11,' in beside


def test_rules_side_by_side() -> None:
    both = ["--diff-rules", "torch-2.11", "torch-2.13"]
    assert formats(*both).stdout.splitlines() == [
        "format  field     torch-2.11  torch-2.13",
        "e4m3fn  overflow  to_nan      saturate",
        "e4m3fn  infinity  to_nan      saturate",
        "alike in both: fp64, fp32, fp16, bf16, e4m3fnuz, e5m2, e5m2fnuz, e8m0fnu",
    ]
    assert formats("float16", *both).stdout == "alike in both: fp16\n"
    assert json.loads(formats("e4m3fn", "fp16", *both, "--json").stdout) == {
        "e4m3fn": {
            "overflow": {"torch-2.11": "to_nan", "torch-2.13": "saturate"},
            "infinity": {"torch-2.11": "to_nan", "torch-2.13": "saturate"},
        },
        "fp16": {},
    }


def test_every_policy_has_its_word() -> None:
    for words, policy in (
        (edges.BEYOND, Overflow),
        (edges.NAN, NanPolicy),
        (edges.NEGATIVE, NegativePolicy),
        (edges.ZERO, ZeroPolicy),
    ):
        assert set(words) == set(get_args(policy))


def test_differences_alone() -> None:
    shown_lines = formats("--diff", "e4m3fn", "e5m2").stdout
    assert "448" in shown_lines
    assert "57344" in shown_lines
    assert "source" not in shown_lines  # both are of one document


def test_values() -> None:
    (table,) = json.loads(formats("e2m1fn", "--values", "--json").stdout).values()
    assert list(table.values())[:8] == ["0", "0.5", "1", "1.5", "2", "3", "4", "6"]
    assert table["0x8"] == "-0"
    assert "0xf -6" in formats("e2m1fn", "--values").stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["bf61"], "Did you mean 'bf16'"),
        (["e4m3"], "means several things"),
        (["--diff", "bf16"], "two or more"),
        (["fp16", "--values"], "8 bits or fewer, not fp16"),
        (["mxfp4", "--values"], "8 bits or fewer, not mxfp4"),
        (["--rules", "torch"], f"unknown rules 'torch'. Did you mean 'torch-2.13'? {ALL_RULES}"),
        (["fp16", "--rules", "te"], 'rules "te" say nothing of fp16; they cover e4m3fn, e5m2, e2'),
        (["mxfp4", "--rules", "standard"], "it is one of blocks, whose elements are e2m1fn."),
        (["--diff-rules", "te", "teh"], f"unknown rules 'teh'. Did you mean 'te'? {ALL_RULES}"),
        (["tf32", "--diff-rules", "te", "ml_dtypes"], 'the rules "te" say nothing of tf32; they'),
    ],
)
def test_errors(args: list[str], message: str) -> None:
    done = formats(*args)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--diff", "--values"], "--diff and --values do not go together."),
        (["--values", "--rules", "te"], "--rules and --values do not go together."),
        (["--diff-rules", "te"], "Option '--diff-rules' requires 2 arguments."),
        (["--jsn"], "No such option '--jsn'. Did you mean '--json'?"),
    ],
)
def test_wrong_usage(args: list[str], message: str) -> None:
    done = formats(*args)
    assert done.returncode == 2
    assert f"Error: {message}\n" in done.stderr
    assert done.stdout == ""


@given(st.fractions(max_denominator=1 << 12) | st.integers(-(10**12), 10**12).map(Fraction))
def test_what_is_shown_without_a_sign_is_exact(value: Fraction) -> None:
    text = shown(value)
    if text.startswith("≈"):
        if value:
            assert abs(Fraction(text[1:]) / value - 1) <= Fraction(1, 10**5)
    elif "^" in text:
        sign = -1 if text.startswith("-") else 1
        assert sign * Fraction(2) ** int(text.split("^")[1]) == value
    else:
        assert Fraction(text) == value


@given(st.integers(-(2**60), 2**60), st.integers(0, 200))
def test_exact_decimals(numerator: int, shift: int) -> None:
    value = Fraction(numerator, 1 << shift)
    assert Fraction(exact_decimal(value)) == value


def test_beyond_the_range_of_a_float() -> None:
    assert shown(Fraction(3) * Fraction(2) ** 3000) == "≈3.6907e903"
    assert shown(Fraction(2) ** 3000) == "2^3000"
    assert shown(Fraction(2, 3) * Fraction(10) ** 400, 3) == "≈6.67e399"
    assert shown(Fraction(1, 3), 3) == "≈0.333"
    assert shown(None) == "–"
    assert [shown(x) for x in (float("inf"), float("nan"), -0.0)] == ["inf", "NaN", "-0"]


def test_the_overflow_column_of_formats_without_a_fraction() -> None:
    facts = json.loads(formats("e8m0fnu", "e3m0", "--json").stdout)
    assert [fact["overflows"] for fact in facts] == ["≥ ≈2.55212e38", "≥ 12"]
