"""From the formula to the measurement in signed terms, and from recipe to recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope.memory import Category, Ledger, Row, Stage, measure
from floatscope.memory.closed_form import GPTNumbers, saved
from floatscope.memory.reconcile import between, formula_for, reconcile
from floatscope.memory.units import mib
from floatscope.report.memory_words import CATEGORIES, REASONS, STAGES, TERMS
from tests.memory_workloads import tiny_gpt

# MiB over four layers at 32 x 256 tokens.
TABLE = {
    ("fp32", "materialized"): {
        "formula": "1184.00", "no dropout": "-416.00", "SwiGLU": "88.00",
        "norms keep more": "64.25", "last norm and head": "24.03", "log-softmax": "64.00",
        "ids and targets": "0.13",
    },
    ("bf16-mixed", "materialized"): {
        "formula": "592.00", "no dropout": "-208.00", "SwiGLU": "44.00",
        "norms keep more": "64.25", "residual stream in fp32": "32.00",
        "one cast a consumer": "48.00", "last norm and head": "20.03", "log-softmax": "64.00",
        "casts of weights and tables": "7.16", "ids and targets": "0.13",
    },
    ("fp32", "fused"): {
        "formula without scores": "544.00", "no dropout": "-32.00", "SwiGLU": "88.00",
        "norms keep more": "64.25", "attention": "32.00", "log-sum-exp": "1.00",
        "last norm and head": "24.03", "log-softmax": "64.00", "ids and targets": "0.13",
    },
    ("bf16-mixed", "fused"): {
        "formula without scores": "272.00", "no dropout": "-16.00", "SwiGLU": "44.00",
        "norms keep more": "64.25", "residual stream in fp32": "32.00",
        "one cast a consumer": "48.00", "attention": "16.00", "log-sum-exp": "1.00",
        "last norm and head": "20.03", "log-softmax": "64.00",
        "casts of weights and tables": "7.16", "ids and targets": "0.13",
    },
    ("bf16-pure", "materialized"): {
        "formula": "592.00", "no dropout": "-208.00", "SwiGLU": "44.00",
        "norms keep more": "64.25", "residual stream in fp32": "32.00",
        "last norm and head": "20.03", "log-softmax": "32.00", "ids and targets": "0.13",
    },
    ("bf16-master", "fused"): {
        "formula without scores": "272.00", "no dropout": "-16.00", "SwiGLU": "44.00",
        "norms keep more": "64.25", "residual stream in fp32": "32.00", "attention": "16.00",
        "log-sum-exp": "1.00", "last norm and head": "20.03", "log-softmax": "32.00",
        "ids and targets": "0.13",
    },
}  # fmt: skip
TOTALS = {
    ("fp32", "materialized"): "1008.41", ("bf16-mixed", "materialized"): "663.56",
    ("fp32", "fused"): "785.41", ("bf16-mixed", "fused"): "552.56",
    ("bf16-pure", "materialized"): "576.41", ("bf16-master", "fused"): "465.41",
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_the_terms_of_the_laboratorys_model(case: tuple[str, str]) -> None:
    recipe, attention = case
    numbers = GPTNumbers(attention=attention)  # type: ignore[arg-type]
    terms = reconcile(numbers, recipe)
    assert {row.term: mib(row.bytes) for row in terms} == TABLE[case]
    assert terms.total == saved(numbers, recipe).total
    assert mib(terms.total) == TOTALS[case]
    assert all(row.reason for row in terms)


@settings(max_examples=50)
@given(
    st.builds(
        GPTNumbers,
        vocab_size=st.integers(1, 100),
        context=st.integers(1, 100),
        num_layers=st.integers(1, 3),
        width=st.sampled_from([24, 48, 96]),
        num_heads=st.sampled_from([1, 2, 3]),
        ff_width=st.integers(1, 100),
        batch_size=st.integers(1, 4),
        attention=st.sampled_from(["fused", "materialized"]),
    ),
    st.sampled_from(["fp32", "bf16-mixed", "fp16-mixed", "bf16-pure", "fp16-O2", "fp8-current"]),
)
def test_nothing_is_left_between_formula_and_closed_form(numbers: GPTNumbers, recipe: str) -> None:
    terms = reconcile(numbers, recipe)
    assert terms.total == saved(numbers, recipe).total
    assert terms.rows[0].bytes == formula_for(numbers, recipe).total
    steps = between(saved(numbers, "fp32"), saved(numbers, recipe), "fp32")
    assert steps.total == saved(numbers, recipe).total


@pytest.mark.parametrize("attention", ["fused", "materialized"])
def test_every_term_has_a_chinese_name_and_reason(attention: str) -> None:
    numbers = GPTNumbers(attention=attention)  # type: ignore[arg-type]
    for recipe in ("fp32", "bf16-mixed", "bf16-pure", "bf16-master", "fp8-current"):
        for row in reconcile(numbers, recipe):
            assert row.term in TERMS
            assert row.term in REASONS or row.term.startswith("formula")
    assert {str(category) for category in Category} <= CATEGORIES.keys()
    assert {str(stage) for stage in Stage} <= STAGES.keys()


def test_from_fp32_to_bf16() -> None:
    numbers = GPTNumbers(attention="materialized")
    terms = between(saved(numbers, "fp32"), saved(numbers, "bf16-mixed"), "fp32")
    steps = {row.term: mib(row.bytes) for row in terms}
    assert steps == {
        "fp32": "1008.41", "SwiGLU": "-172.00", "one cast a consumer": "16.00",
        "attention": "-192.00", "last norm and head": "-4.00",
        "casts of weights and tables": "7.16",
    }  # fmt: skip
    assert "residual stream in fp32" not in steps
    assert "log-softmax" not in steps
    assert "in the format between products" in terms.where(term="SwiGLU").rows[0].reason


def test_from_bf16_to_a_model_of_16_bits() -> None:
    numbers = GPTNumbers(attention="materialized")
    mixed, pure = saved(numbers, "bf16-mixed"), saved(numbers, "bf16-pure")
    steps = {row.term: mib(row.bytes) for row in between(mixed, pure, "bf16-mixed")}
    assert steps == {
        "bf16-mixed": "663.56", "one cast a consumer": "-48.00", "log-softmax": "-32.00",
        "casts of weights and tables": "-7.16",
    }  # fmt: skip
    assert between(pure, saved(numbers, "bf16-master"), "bf16-pure").total == pure.total


def test_a_measurement_beyond_the_closed_form_is_unexplained() -> None:
    workload, numbers = tiny_gpt("bf16-mixed", "materialized")
    measured = measure(workload).saved
    terms = reconcile(numbers, "bf16-mixed", measured)
    assert terms.unexplained == 0
    assert terms.total == measured.total
    stray = Row(term="", category=Category.ACTIVATIONS, bytes=7, module="blocks.0.ff")
    terms = reconcile(numbers, "bf16-mixed", measured + Ledger([replace(stray, operation="mul")]))
    assert terms.unexplained == 7
    assert terms.total == measured.total + 7
    assert terms.where(category=Category.UNEXPLAINED).rows[0].term == "blocks.0.ff mul"
