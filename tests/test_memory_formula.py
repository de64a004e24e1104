"""The standard block's formula, model states, and the published tables."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.errors import LedgerError
from floatscope.memory.formula import (
    Parallel,
    Transformer,
    activations,
    around_the_blocks,
    bytes_per_layer,
    pipeline_outputs,
)
from floatscope.memory.ledger import Category
from floatscope.memory.published import ANCHORS
from floatscope.memory.selftest import check, selftest
from floatscope.memory.states import ADAM_8BIT, POLICIES, policy, quantized_moments, states
from tests.test_startup import loaded

LAB = Transformer(sequence=256, batch=32, width=256, heads=8, layers=4)
MIB = 1 << 20


def test_the_documents_figures() -> None:
    assert activations(LAB).total == 592 * MIB
    assert activations(LAB, element_bytes=4).total == 1184 * MIB
    assert states("fp32", 3_688_704).total == 59_019_264
    assert states("autocast", 3_688_704, num_tensors=38).total == 59_019_264 + 152


def test_every_published_figure_to_the_printed_digits() -> None:
    checks = selftest()
    assert not [c for c in checks if not c.agrees]
    assert len(checks) > 160
    assert all(c.source for c in checks)
    exact = [c for c in checks if c.ours != c.published]
    assert len(exact) <= sum(anchor.within > 0 for anchor in ANCHORS.values())


def test_a_wrong_figure_is_seen() -> None:
    assert not check("x", "41.2", Fraction(4131, 100), "GB", "").agrees
    assert check("x", "41.3", Fraction(4125, 100), "GB", "").agrees
    assert check("x", "513", Fraction(5135, 10), "GB", "").agrees  # cut off, as in the ZeRO paper
    assert check("x", "514", Fraction(5135, 10), "GB", "").agrees
    assert not check("x", "100", Fraction(103), "GB", "", within=0.02).agrees


shapes = st.builds(
    Transformer,
    sequence=st.integers(1, 512).map(lambda n: 8 * n),
    batch=st.integers(1, 64),
    width=st.integers(1, 512).map(lambda n: 8 * n),
    heads=st.integers(1, 16).map(lambda n: 8 * n),
    layers=st.integers(1, 100),
)


@given(shapes, st.sampled_from([1, 2, 4, 8]))
def test_the_papers_closed_forms(shape: Transformer, t: int) -> None:
    s, b, h, a = shape.sequence, shape.batch, shape.width, shape.heads
    sbh, ass = s * b * h, a * s * s * b
    tensor, both = Parallel(tensor=t), Parallel(tensor=t, sequence=True)
    assert bytes_per_layer(shape) == 34 * sbh + 5 * ass
    assert bytes_per_layer(shape, tensor) == 10 * sbh + Fraction(24 * sbh + 5 * ass, t)
    assert bytes_per_layer(shape, both) == Fraction(34 * sbh + 5 * ass, t)
    assert bytes_per_layer(shape, tensor, "selective") == 10 * sbh + Fraction(24 * sbh, t)
    assert bytes_per_layer(shape, both, "selective") == Fraction(34 * sbh, t)
    assert bytes_per_layer(shape, both, "full") == 2 * sbh
    assert activations(shape, tensor).total == shape.layers * bytes_per_layer(shape, tensor)


def test_pipelines_and_what_lies_around_the_blocks() -> None:
    shape = Transformer(sequence=2048, batch=1, width=12288, heads=96, layers=96, vocab=51_200)
    sbh = 2048 * 12288
    split = Parallel(tensor=8, pipeline=8, interleaving=3)
    assert split.in_flight == 1 + Fraction(7, 24)
    assert Parallel(pipeline=8).in_flight == 1
    assert [row.bytes for row in around_the_blocks(shape, split)] == [sbh]
    alone = around_the_blocks(shape, Parallel(tensor=8))
    assert alone.total == sbh // 8 + 4 * sbh // 8 + 4 * 2048 * 51_200 // 8
    assert alone.by_category()[Category.LOSS] == 4 * 2048 * 51_200 // 8
    assert pipeline_outputs(shape, split) == 2 * sbh * 8


def test_the_fullest_device_is_meant_where_a_degree_does_not_divide() -> None:
    shape = Transformer(sequence=1, batch=1, width=1, heads=1, layers=1)
    rows = {row.term: row.bytes for row in activations(shape, Parallel(tensor=3))}
    assert rows["q and k"] == 2  # 4 / 3, rounded up
    assert states("fp32", 1, zero=3, devices=1000).total == 4


@pytest.mark.parametrize("name", POLICIES)
def test_zero_splits_what_it_says(name: str) -> None:
    held = policy(name)
    n, devices = 64_000_000, 64
    totals = [states(held, n, zero=z, devices=devices).total for z in (0, 1, 2, 3)]
    split = [0, held.optimizer, held.optimizer + held.gradients, held.total]
    for total, part in zip(totals, split, strict=True):
        assert total == (held.total - part + Fraction(part, devices)) * n
    assert all(row.reason.endswith(held.source) for row in states(held, n))


def test_small_tensors_keep_full_moments() -> None:
    assert quantized_moments([4096], ADAM_8BIT) == ADAM_8BIT == 2 + Fraction(8, 256)
    assert quantized_moments([4095], ADAM_8BIT) == 8
    with pytest.raises(LedgerError, match="no parameter"):
        quantized_moments([], ADAM_8BIT)


def test_formulas_need_no_torch() -> None:
    code = "import floatscope.memory.reconcile, floatscope.memory.selftest"
    assert not loaded(code) & {"torch", "numpy"}


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(LedgerError, match="heads must be an integer of at least 1, not 0"):
        replace(LAB, heads=0)
    with pytest.raises(LedgerError, match="batch must be an integer of at least 1, not 2.0"):
        replace(LAB, batch=2.0)
    with pytest.raises(LedgerError, match="tensor must be an integer"):
        Parallel(tensor=0)
    with pytest.raises(LedgerError, match="unknown recomputation 'ful'. Did you mean 'full'"):
        activations(LAB, recompute="ful")  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="stages 0, 1, 2 and 3, not 4"):
        states("fp32", 1, zero=4)
    with pytest.raises(LedgerError, match="cannot be negative"):
        states("fp32", -1)
    with pytest.raises(LedgerError, match="unknown bookkeeping 'bf16'"):
        states("bf16", 1)
