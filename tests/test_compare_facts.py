"""What one gradient can show of the literature, on seeds, at initialization."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

import floatscope as fs
from floatscope.lab.model import make_gpt
from floatscope.lab.run.train import batch_loss
from floatscope.recipes import Recipe, recipe
from floatscope.recipes.formats_of import Operand, Operands
from tests import tiny

SEEDS = range(5)


def errors(seed: int, *recipes: Recipe | str) -> dict[str, float]:
    """Error of the whole gradient by recipe."""
    model, batch = make_gpt(tiny.MODEL, seed=seed), tiny.batch(seed=seed)
    found = fs.compare(model, lambda m: batch_loss(m, batch), recipes, backend="emulated")
    return {arm.recipe: arm.whole.error for arm in found.arms}


def with_rule(form: str, rule: str) -> Recipe:
    operand = Operand(format=form, rule=rule)
    operands = Operands(activation=operand, weight=operand, gradient=operand)
    return replace(recipe("mxfp8"), name=f"{form}-{rule}", operands=operands)


@pytest.mark.parametrize("seed", SEEDS)
def test_mxfp4_is_worse_than_mxfp6_than_mxfp8_than_fp32(seed: int) -> None:
    """Rouhani et al. 2023 (arXiv 2310.10537) report this order for the losses of trainings."""
    found = errors(seed, "mxfp4", "mxfp6", "mxfp8")
    assert [*found] == ["fp32", "mxfp8", "mxfp6", "mxfp4"]
    ordered = [*found.values()]
    assert all(worse > 1.5 * better for better, worse in itertools.pairwise(ordered))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scale_rounded_up_beats_floor_for_e4m3(seed: int) -> None:
    """Mishra et al. 2025 (arXiv 2506.08027): floor saturates where a significand exceeds 1.75."""
    found = errors(seed, with_rule("mxfp8-e4m3", "floor"), with_rule("mxfp8-e4m3", "rceil"))
    assert found["mxfp8-e4m3-rceil"] < found["mxfp8-e4m3-floor"]


@pytest.mark.parametrize("seed", SEEDS)
def test_for_e2m1_the_two_rules_cannot_be_told_apart(seed: int) -> None:
    """The claim is for e4m3 alone: in e2m1, rounding up costs in resolution what it saves."""
    found = errors(seed, with_rule("mxfp4", "floor"), with_rule("mxfp4", "rceil"))
    assert found["mxfp4-rceil"] == pytest.approx(found["mxfp4-floor"], rel=0.05)
