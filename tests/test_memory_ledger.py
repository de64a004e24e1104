"""The ledger: a formal sum of rows."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.errors import LedgerError
from floatscope.memory.ledger import Category, Ledger, Lifetime, Row, Stage
from floatscope.memory.units import GIB, MIB, cut, dtype_name, mib, rounded, unit_for, up

SAMPLES = [
    Row(term="weights", category=Category.PARAMETERS, bytes=400, dtype="fp32", count=2),
    Row(term="scores", category=Category.ACTIVATIONS, bytes=64, module="blocks.0", dtype="bf16"),
    Row(term="scores", category=Category.ACTIVATIONS, bytes=64, module="blocks.1", dtype="bf16"),
    Row(term="ids", category=Category.INPUT, bytes=0, count=1, lifetime=Lifetime.SAVED),
]

rows = st.builds(
    Row,
    term=st.sampled_from(["a", "b"]),
    category=st.sampled_from(Category),
    bytes=st.integers(-(2**70), 2**70),
    module=st.sampled_from(["", "blocks.0"]),
    count=st.integers(-2, 2),
    stage=st.sampled_from(Stage),
)
ledgers = st.lists(rows, max_size=6).map(Ledger)


def test_totals_and_categories() -> None:
    ledger = Ledger(SAMPLES)
    assert ledger.total == 528
    assert ledger.by_category() == {
        Category.PARAMETERS: 400, Category.ACTIVATIONS: 128, Category.INPUT: 0,
    }  # fmt: skip
    assert ledger.unexplained == 0
    assert len(ledger) == 4


def test_unexplained_counts_in_both_directions() -> None:
    stray = Row(term="?", category=Category.UNEXPLAINED, bytes=5)
    assert Ledger([stray, replace(stray, term="!", bytes=-5)]).unexplained == 10


def test_rows_of_one_name_are_one_row_and_keep_the_first_reason() -> None:
    first = replace(SAMPLES[1], count=1, reason="why")
    ledger = Ledger([first, replace(first, reason="other")])
    assert ledger.rows == (replace(first, bytes=128, count=2),)


def test_where_and_group() -> None:
    ledger = Ledger(SAMPLES)
    assert ledger.where(term="scores", module="blocks.1").total == 64
    assert ledger.where(term=("scores", "weights")).total == 528
    assert list(ledger.group("dtype")) == [("fp32",), ("bf16",), ("",)]
    assert ledger.group("term", "dtype")["scores", "bf16"].total == 128
    with pytest.raises(LedgerError, match="unknown field 'modul'. Did you mean 'module'"):
        ledger.group("modul")
    with pytest.raises(LedgerError, match="unknown field 'bytes'"):
        ledger.where(bytes="64")


def test_projection_forgets_all_but_the_named_fields_and_the_category() -> None:
    projected = Ledger(SAMPLES).project("dtype")
    assert [(r.dtype, r.category.value, r.bytes) for r in projected] == [
        ("fp32", "parameters", 400), ("bf16", "saved activations", 128), ("", "input", 0),
    ]  # fmt: skip


def test_table_and_waterfall() -> None:
    ledger = Ledger([SAMPLES[0], replace(SAMPLES[1], bytes=-(1 << 20))])
    assert ledger.table() == [
        ("parameters", "400", "0.00"),
        ("saved activations", "-1,048,576", "-1.00"),
        ("total", "-1,048,176", "-1.00"),
    ]
    assert ledger.table("term", "module")[-1] == ("total", "", "-1,048,176", "-1.00")
    assert ledger.waterfall() == [
        ("parameters", 400, 400), ("saved activations", -(1 << 20), -1_048_176),
    ]  # fmt: skip
    assert ledger.waterfall("term", "dtype")[1][0] == "scores bf16"


def test_nothing_changes_in_place() -> None:
    ledger = Ledger(SAMPLES)
    with pytest.raises(FrozenInstanceError):
        ledger.rows = ()  # type: ignore[misc]
    assert (ledger + ledger).total == 1056
    assert ledger.total == 528


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bytes", 1.0, "bytes of row 'weights' must be an integer, not 1.0"),
        ("bytes", True, "must be an integer, not True"),
        ("category", "activations", "unknown category 'activations'. Did you mean"),
        ("stage", "sleep", "unknown stage 'sleep'. Choose from: build"),
    ],
)
def test_impossible_rows_are_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        replace(SAMPLES[0], **{field: value})


def test_json_reading_refuses_what_it_did_not_write() -> None:
    with pytest.raises(LedgerError, match='"unit": "bytes"'):
        Ledger.from_dict({"unit": "MiB", "rows": []})
    with pytest.raises(LedgerError, match="not a row of a ledger.*'size'"):
        Ledger.from_dict({"unit": "bytes", "rows": [{"size": 1}]})


@given(ledgers, ledgers, ledgers)
def test_addition_is_a_commutative_group(a: Ledger, b: Ledger, c: Ledger) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Ledger() == a
    assert not (a - a).rows
    assert (a + b) - b == a
    assert hash(a + b) == hash(b + a)


@given(ledgers, ledgers)
def test_totals_are_linear_and_parts_make_the_whole(a: Ledger, b: Ledger) -> None:
    assert (a + b).total == a.total + b.total
    assert (a - b).total == a.total - b.total
    assert sum(a.by_category().values()) == a.total
    assert sum((part for part in a.group("module", "stage").values()), Ledger()) == a
    assert a.project("term").total == a.total
    assert (a + b).project("term") == a.project("term") + b.project("term")
    steps = a.waterfall("module")
    assert not steps or steps[-1][2] == a.total


@given(ledgers)
def test_json_round_trip(ledger: Ledger) -> None:
    again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert again == ledger
    assert again.rows == ledger.rows


def test_a_tables_unit_suits_its_largest_entry() -> None:
    assert [unit_for(n).name for n in (0, MIB - 1, MIB, 10 * GIB - 1, 10 * GIB)] == [
        "KiB", "KiB", "MiB", "MiB", "GiB",
    ]  # fmt: skip
    assert unit_for(11 * GIB).of(-11 * GIB) == "-11.00"
    assert unit_for(1).of(1536) == "1.50"


def test_units() -> None:
    assert mib(1_057_390_596) == "1008.41"
    assert mib(0) == "0.00"
    assert rounded(Fraction(165, 4), 1) == "41.3"
    assert cut(Fraction(41875, 10), 0) == "4187"
    assert rounded(Fraction(-1, 8), 2) == "-0.13"
    assert rounded(Fraction(10**30 + 1, 2), 0) == str(10**30 // 2 + 1)
    assert up(Fraction(7, 2)) == 4
    assert up(4) == 4
    assert dtype_name("torch.bfloat16") == "bf16"
    assert dtype_name("torch.int64") == "int64"
