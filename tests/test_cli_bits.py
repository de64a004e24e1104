"""`floatscope bits`: one number in several formats, bit by bit."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.cli.bits_facts import NUM_DRAWS, outcomes_of
from floatscope.formats import FLOATS, INTEGERS
from floatscope.rounding import PRESETS, Overflow, Rounding, round_value
from floatscope.rounding.rules import ScalarFormat, resolve


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "floatscope.cli.main", "bits", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def shown(*args: str) -> list[str]:
    done = run(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def bits(*args: str) -> list[dict[str, Any]]:
    return json.loads("\n".join(shown("--json", *args)))


def test_a_decimal_in_several_formats() -> None:
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


def test_codes_and_special_values() -> None:
    assert bits("0x3c01", "-f", "fp16")[0]["exactly"] == "1.0009765625"
    assert bits("0x1p-24", "-f", "fp16")[0]["code"] == "0x0001"
    nan = bits("nan", "-f", "fp16")[0]
    assert (nan["code"], nan["stored"]) == ("0x7e00", "NaN")
    assert not {"error", "ulp", "below"} & set(nan)
    assert bits("nan", "-f", "e2m1fn")[0]["refused"] == "e2m1fn has no NaN."
    assert bits("-f", "fp16", "--", "-0")[0]["code"] == "0x8000"
    assert bits("0.3", "-f", "fp16", "--rounding", "up")[0]["error"] == "≈4.88281e-5"


def test_for_people() -> None:
    assert shown("0.1", "-f", "bf16") == [
        "bf16         0x3dcd       0 01111011 1001101",
        "             stored   0.10009765625",
        "             error    ≈9.76562e-5, relative 0.000977",
        "             ulp      2^-11",
        "             between  ≈0.099609 and ≈0.10059",
    ]
    assert max(map(len, shown("0.1"))) <= 80


def test_beyond_the_largest_value_the_standard_decides() -> None:
    names = ["fp16", "e4m3fn", "e4m3fnuz", "e2m1fn", "int8"]
    facts = bits("1e6", *(word for name in names for word in ("-f", name)))
    assert [(fact["code"], fact["stored"]) for fact in facts] == [
        ("0x7c00", "inf"),
        ("0x7f", "NaN"),
        ("0x80", "NaN"),
        ("0x7", "6"),
        ("0x7f", "127"),
    ]
    assert {fact["rules"] for fact in facts} == {fact["decided by"] for fact in facts}
    assert shown("1e6", "-f", "e4m3fn") == [
        "e4m3fn       0x7f         0 1111 111",
        "             stored   NaN",
        "             rules    standard",
    ]
    assert "decided by" not in bits("448", "-f", "e4m3fn")[0]


def test_rules_of_a_library() -> None:
    assert [fact["format"] for fact in bits("0.1", "--rules", "te")] == ["e4m3fn", "e5m2"]
    assert shown("inf", "-f", "e4m3fn", "--rules", "torch-2.13")[:3] == [
        "e4m3fn       0x7e         0 1111 110",
        "             stored   448",
        "             rules    torch-2.13",
    ]
    assert bits("nan", "-f", "e2m1fn", "--rules", "te")[0]["stored"] == "0"
    assert bits("-f", "e8m0fnu", "--rules", "ml_dtypes", "--", "-3")[0]["stored"] == "NaN"
    assert bits("-f", "e8m0fnu", "--rules", "torch-2.13", "--", "-3")[0]["stored"] == "4"


def test_explicit_choices_win_over_rules() -> None:
    (fact,) = bits("1e6", "-f", "e4m3fn", "--rules", "te", "--overflow", "to_nan")
    assert (fact["stored"], fact["overflow"], fact["rules"]) == ("NaN", "to_nan", "te")
    assert "decided by" not in fact
    (fact,) = bits("1.01", "-f", "e4m3fn", "--rules", "te", "--rounding", "up")
    assert (fact["stored"], fact["rounding"], fact["overflow"]) == ("1.125", "up", "saturate")
    e4m3fn, e5m2 = shown("1", "-f", "e4m3fn", "-f", "e5m2", "--overflow", "to_inf")[:2]
    assert e4m3fn.endswith('has no infinity for overflow="to_inf"; choose "saturate" or "raise".')
    assert e5m2.startswith("e5m2         0x3c")
    (fact,) = bits("1e6", "-f", "fp16", "--overflow", "raise")
    assert fact["refused"] == "overflow: beyond the largest value of fp16."


def test_integers() -> None:
    assert shown("100.5", "-f", "int8") == [
        "int8         0x64         01100100",
        "             stored   100",
        "             error    -0.5, relative 0.00498",
        "             ulp      1",
        "             between  99 and 101",
    ]
    int8, int4 = bits("0x80", "-f", "int8", "-f", "int4")
    assert (int8["stored"], int8["below"], int8["above"]) == ("-128", "–", "-127")
    assert (int4["code"], int4["stored"], int4["error"]) == ("0x8", "-8", "120")
    assert bits("nan", "-f", "int4")[0]["refused"] == "int4 has no NaN."


def test_stochastic_rounding_shows_both_neighbors() -> None:
    assert shown("1.03125", "-f", "e4m3fn", "--rounding", "stochastic") == [
        "e4m3fn       0x38         0 0111 000",
        "             stored   1",
        "             error    -2^-5, relative 0.0303",
        "             chance   0.75",
        "             0x39         0 0111 001",
        "             stored   1.125",
        "             error    0.09375, relative 0.0909",
        "             chance   0.25",
    ]
    (fact,) = bits("-f", "int8", "--rounding", "stochastic", "--", "-2.1")
    assert [(one["stored"], one["probability"]) for one in fact["outcomes"]] == [
        ("-2", "≈0.9"),
        ("-3", "≈0.1"),
    ]
    certain, edge = bits("450", "-f", "fp16", "-f", "e4m3fn", "--rounding", "stochastic")
    assert [(one["stored"], one["probability"]) for one in certain["outcomes"]] == [("450", "1")]
    assert [(one["stored"], one["probability"]) for one in edge["outcomes"]] == [
        ("448", "0.9375"),
        ("NaN", "2^-4"),
    ]


@given(
    st.fractions(-1000, 1000) | st.floats(allow_nan=True).filter(lambda x: x != 0),
    st.sampled_from([*FLOATS, *INTEGERS]),
)
def test_probabilities_are_those_of_the_oracle(value: Fraction | float, form: ScalarFormat) -> None:
    if value != value and not getattr(form, "has_nan", False):
        return
    rules = resolve(form, rounding="stochastic")
    exact = value if value in (float("inf"), float("-inf")) or value != value else Fraction(value)
    found = list(outcomes_of(exact, form, rules))
    assert sum(probability for _, probability in found) == 1
    draws = int(found[-1][1] * NUM_DRAWS)  # the first so many random numbers give the outer value
    for random in {0, draws - 1, draws, NUM_DRAWS - 1} - {NUM_DRAWS}:
        drawn = found[-1 if random < draws else 0][0]
        assert repr(round_value(exact, form, rules, random=random)) == repr(drawn)


def test_numbers_that_no_python_float_reaches() -> None:
    assert bits("1e400", "-f", "fp16")[0]["stored"] == "inf"
    (fact,) = bits("1e400", "-f", "e15m112")
    assert fact["above"] == "≈1.000000000000000000000000000000000139e400"
    assert bits("1e-400", "-f", "e8m0fnu")[0]["relative error"] == "≈5.88e361"


def test_help_names_every_choice() -> None:
    text = " ".join("\n".join(shown("--help")).split())
    for choice in (*get_args(Rounding), *get_args(Overflow)):
        assert choice in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["0.1", "-f", "mxfp4"], "mxfp4 is no float format and no integer format: it is one of"),
        (["abc"], "'abc' is no number"),
        (["1e999999999"], "lies beyond every format"),
        (["0x" + "f" * 1000, "-f", "fp16"], f"code 0x{'f' * 37}… does not fit fp16"),
        (["0x10000", "-f", "fp16"], "does not fit fp16"),
        (["0x100", "-f", "int8"], "code 0x100 does not fit int8."),
        (["0.1", "--rounding", "nearest"], "'nearest'. Did you mean 'nearest-even'? Choose from:"),
        (
            ["0.1", "--overflow", "saturating"],
            "unknown overflow policy 'saturating'. Did you mean 'saturate'? "
            "Choose from: saturate, to_inf, to_nan, raise.",
        ),
        (["0.1", "--rules", "torch"], f"Did you mean 'torch-2.13'? Choose from: {PRESETS[0]}, "),
        (
            ["0.1", "-f", "e4m3fn", "-f", "fp16", "--rules", "te"],
            'the rules "te" say nothing of fp16; they cover e4m3fn, e5m2, e2m1fn.',
        ),
    ],
)
def test_errors(args: list[str], message: str) -> None:
    done = run(*args)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stdout == ""


def test_numbers_too_long_to_write_out() -> None:
    assert bits("5e4931", "-f", "e15m112")[0]["exactly"].startswith("≈5.00000000")
    assert bits("1e4500", "-f", "e15m10")[0]["stored"] == "≈1.00029e4500"
    assert bits("1e-4500", "-f", "e15m10")[0]["stored"] == "≈9.99641e-4501"
    (largest,) = bits("inf", "-f", "e15m0", "--overflow", "saturate")
    assert (largest["stored"], largest["above"]) == ("2^16383", "inf")
    (fact,) = bits(f"1.{'0' * 400}1", "-f", "fp16")
    assert fact["relative error"] == "≈1e-401"
    smallest = bits("0x1p-1074", "-f", "fp64")[0]["exactly"]
    assert smallest == f"1/{2**1074}"


def test_a_nan_keeps_its_code_and_its_sign() -> None:
    e4m3fn, fp16, e5m2fnuz = bits("0xff", "-f", "e4m3fn", "-f", "fp16", "-f", "e5m2fnuz")
    assert (e4m3fn["code"], fp16["code"], e5m2fnuz["code"]) == ("0xff", "0xfe00", "0x80")
    assert bits("0xfc01", "-f", "fp16")[0]["code"] == "0xfc01"
    assert bits("0x80", "-f", "e4m3fnuz", "-f", "fp16")[1]["code"] == "0x7e00"
    assert bits("0xff", "-f", "e8m0fnu", "-f", "fp16")[1]["code"] == "0x7e00"
    assert bits("-500", "-f", "e4m3fn")[0]["code"] == "0xff"
    assert bits("-nan", "-f", "e4m3fn")[0]["code"] == "0xff"
    assert bits("-inf", "-f", "e4m3fnuz")[0]["code"] == "0x80"
    assert bits("0xff", "-f", "e4m3fn", "--rounding", "stochastic")[0]["outcomes"][0]["code"] == (
        "0xff"
    )


@pytest.mark.parametrize("value", ["-0.1", "-.1", "-1e-1", "-0x1.999999999999ap-4", "-0xf", "-INF"])
def test_a_negative_number_is_no_option(value: str) -> None:
    assert bits(value, "-f", "fp32") == bits("-f", "fp32", "--", value)
