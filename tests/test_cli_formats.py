"""`floatscope formats`: exact numbers, printed as such."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.formats.show import exact_decimal, shown


def formats(*args: str, verb: str = "formats") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "floatscope.cli.main", verb, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def bits(*args: str) -> list[dict[str, str]]:
    done = formats("--json", *args, verb="bits")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
    ],
)
def test_errors(args: list[str], message: str) -> None:
    done = formats(*args)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_heavy_is_loaded() -> None:
    program = (
        "import sys; sys.argv = ['floatscope', 'formats', 'bf16']\n"
        "from floatscope.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & {"torch", "numpy", "duckdb"}


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
    assert shown(None) == "–"
    assert [shown(x) for x in (float("inf"), float("nan"), -0.0)] == ["inf", "NaN", "-0"]


def test_bits_of_a_decimal_in_several_formats() -> None:
    fp16, e4m3fn = bits("0.1", "-f", "fp16", "-f", "e4m3fn")
    assert fp16["code"] == "0x2e66"
    assert fp16["bits"] == "0010111001100110"
    assert fp16["exactly"] == "0.0999755859375"
    assert fp16["ulp"] == "2^-14"
    assert fp16["relative error"] == "0.000244"
    assert (e4m3fn["below"], e4m3fn["stored"], e4m3fn["above"]) == (
        "0.09375",
        "0.1015625",
        "0.109375",
    )


def test_bits_of_codes_and_special_values() -> None:
    assert bits("0x3c01", "-f", "fp16")[0]["exactly"] == "1.0009765625"
    assert bits("0x1p-24", "-f", "fp16")[0]["code"] == "0x0001"
    assert bits("1e6", "-f", "fp16")[0]["stored"] == "inf"
    assert bits("1e6", "-f", "e4m3fn")[0]["stored"] == "448"
    nan = bits("nan", "-f", "fp16")[0]
    assert (nan["code"], nan["stored"]) == ("0x7e00", "NaN")
    assert not {"error", "ulp", "below"} & set(nan)
    assert bits("nan", "-f", "e2m1fn")[0]["refused"] == "e2m1fn has no NaN."
    assert bits("-f", "fp16", "--", "-0")[0]["code"] == "0x8000"
    assert bits("0.3", "-f", "fp16", "--rounding", "up")[0]["error"] == "≈4.88281e-5"


def test_bits_for_people() -> None:
    shown_text = formats("0.1", "-f", "bf16", verb="bits").stdout
    assert "0 01111011 1001101" in shown_text
    assert "between  ≈0.099609 and ≈0.10059" in shown_text
    assert max(map(len, formats("0.1", verb="bits").stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["0.1", "-f", "mxfp4"], "mxfp4 is no float format"),
        (["abc"], "'abc' is no number"),
        (["0x10000", "-f", "fp16"], "does not fit fp16"),
        (["0.1", "-f", "fp16", "--rounding", "nearest"], "Did you mean 'nearest-even'"),
    ],
)
def test_bits_errors(args: list[str], message: str) -> None:
    done = formats(*args, verb="bits")
    assert "Traceback" not in done.stderr
    assert message in done.stderr + done.stdout
