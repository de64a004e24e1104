"""A/A studies: 48 real fp32 runs, drawn against each other 10 000 times, and normal numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from conformance.false_claims import METHODS, SIZES, Losses, drawn, endpoints, rates, words

from floatscope.lab.statistics import paired, pooled, verdict, welch
from floatscope.lab.study.folder import open_study

RECORDS = Path(__file__).parent.parent / "results" / "aa"
DRAWS = 10_000
ALLOWED = 0.05 + 3 * math.sqrt(0.05 * 0.95 / DRAWS)
"""5 % and three binomial standard deviations."""
MARGINS = (0.5, 1.0, 3.0)  # in standard deviations of a run


def losses() -> Losses:
    return endpoints(RECORDS / "endpoints.json")


def arms(source: str, method: str, n: int) -> tuple[Losses, Losses, float]:
    """Baselines, candidates and a run's standard deviation."""
    rng = np.random.default_rng((n, METHODS.index(method)))
    if source == "real runs":
        return *drawn(losses(), n, DRAWS, rng), float(losses().std(ddof=1))
    return rng.normal(size=(DRAWS, n)), rng.normal(size=(DRAWS, n)), 1.0


def test_the_records_are_those_of_their_plan() -> None:
    study = open_study(RECORDS)
    content = json.loads((RECORDS / "endpoints.json").read_text())
    planned = {plan.seed: plan.run_id(study.data_sha256) for plan in study.plan.runs()}
    assert {run["seed"]: run["run_id"] for run in content["runs"]} == planned
    assert len(losses()) == 48
    assert len(np.unique(losses())) == 48
    assert content["evaluated_after"][-1] == study.plan.train.steps


@pytest.mark.parametrize("source", ["real runs", "normal numbers"])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("method", METHODS)
def test_false_claims(source: str, method: str, n: int) -> None:
    a, b, s = arms(source, method, n)
    for margin in MARGINS:
        found = rates(method, a, b, margin * s)
        assert found.worse <= 0.0297  # 2.5 % and three standard deviations
        assert found.different <= ALLOWED
        assert found.equivalent_above <= ALLOWED
        assert found.equivalent_below <= ALLOWED
        assert found.not_worse <= ALLOWED
    assert found.different > 0.02  # the draws do differ by chance


@pytest.mark.parametrize("method", METHODS)
def test_the_second_arithmetic_is_the_librarys(method: str) -> None:
    a, b, s = arms("real runs", method, 5)
    compare = {"paired": paired, "pooled": pooled, "welch": welch}[method]
    seen, checked = set(), 0
    for shift in (0.0, s, 3 * s):
        found = words(method, a, b + shift, 2 * s)
        for k in range(0, DRAWS, 100):
            spreads = sorted((a[k].std(ddof=1), b[k].std(ddof=1)))
            if method == "pooled" and spreads[1] >= 3 * spreads[0]:
                continue  # refused by the library, which then compares by Welch
            comparison = compare(a[k].tolist(), (b[k] + shift).tolist())
            word = verdict(comparison, 2 * s).word
            assert word == found[k]
            seen.add(word)
            checked += 1
    assert checked > 200
    assert len(seen) >= 4
