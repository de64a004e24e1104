"""The committed records of results/scale-rule say what docs/studies.md says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from floatscope.lab.compare.keep import load
from floatscope.lab.compare.records import StateComparison
from floatscope.recipes import CATALOGUE, Recipe

FOLDER = Path(__file__).parent.parent / "results" / "scale-rule"
QUICK = [f"quick-s{seed}" for seed in range(1, 6)]
NOVEL = [f"novel-s{seed}" for seed in range(1, 4)]


def states(*names: str) -> list[StateComparison]:
    return [state for name in names for state in load(FOLDER / name).states]


@pytest.mark.parametrize("name", QUICK + NOVEL)
def test_records_are_of_the_recipes_beside_them(name: str) -> None:
    found = load(FOLDER / name)
    assert found.seed == int(name[-1])
    for state in found.states:
        for arm in state.arms:
            path = FOLDER / f"{arm.recipe}.toml"
            own = Recipe.from_toml(path) if path.exists() else CATALOGUE[arm.recipe]
            assert arm.arithmetic == own.to_dict()
            assert not state.refused


def test_rounded_up_beats_floor_for_e4m3_in_every_record() -> None:
    found = states(*QUICK, *NOVEL)
    assert len(found) == 2 * len(QUICK) + len(NOVEL)
    for state in found:
        up, floor = (state.arm(name).whole for name in ("mxfp8", "mxfp8-floor"))
        assert up.error < floor.error
        assert up.cosine > floor.cosine


@pytest.mark.parametrize(
    ("names", "state", "up", "floor", "better", "of"),
    [
        (QUICK, 0, 2.07, 2.35, 98, 100),
        (QUICK, 1, 8.64, 10.55, 88, 100),
        (NOVEL, 0, 7.09, 8.17, 114, 114),
    ],
)
def test_means_and_parameters(
    names: list[str], state: int, up: float, floor: float, better: int, of: int
) -> None:
    chosen = [load(FOLDER / name).states[state] for name in names]
    one, other = ([s.arm(name) for s in chosen] for name in ("mxfp8", "mxfp8-floor"))
    for arms, mean in ((one, up), (other, floor)):
        assert round(100 * sum(a.whole.error for a in arms) / len(arms), 2) == mean
    pairs = [
        (a.error, b.error)
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x.layers, y.layers, strict=True)
    ]
    assert (sum(a < b for a, b in pairs), len(pairs)) == (better, of)


def test_e2m1_is_not_so() -> None:
    ratios = [s.arm("mxfp4-floor").whole.error / s.arm("mxfp4-up").whole.error
              for s in states(*QUICK)]  # fmt: skip
    assert min(ratios) < 1 < max(ratios)
    assert sum(ratio < 1 for ratio in ratios) == 2
