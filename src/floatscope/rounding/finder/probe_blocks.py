"""Blocks on which two quantizers to a block format would show that they differ.

Zeros, infinities and NaN; largest magnitudes at and around powers of two and the largest element
value times powers of two, over all of fp32's exponents; every value and tie of the element format
beside an element that makes the scale 1; and quotients so close to a tie that multiplying by the
reciprocal of the scale, instead of dividing, takes the other neighbor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from floatscope.formats import BlockFormat
from floatscope.formats.values import octave_of
from floatscope.rounding import denormals
from floatscope.rounding.finder.probe_inputs import (
    FP32_MAX,
    FP32_TINY,
    SEED,
    Floats,
    as_fp32,
    finite_magnitudes,
    with_neighbors,
)
from floatscope.rounding.tensors import round_to

Block = Sequence[float]
"""The first elements of a block; the others are 0."""

COLUMNS = 16
"""Of a probe where the format does not say."""
FEW_EXPONENTS = (
    -149, -140, -133, -127, -126, -125, -120, -119, -118, -64, -9, -1, 0, 1, 8, 64, 127,
)  # fmt: skip
"""Of largest magnitudes, for formats whose probes are tried one at a time."""
FEW = 128
"""Elements, and near ties, tried of such formats."""
DRAWS = 24
"""Scales drawn in search of quotients near a tie, where they cannot be listed."""


def rows_are_independent(form: BlockFormat) -> bool:
    """Whether no scale covers several rows of a tensor."""
    if form.tensor_scale is not None or form.block == "tensor":
        return False
    return form.block == "row" or form.block[0] == 1


def block_probes(form: BlockFormat) -> Tensor:
    """The inputs for a block format, fp32: (inputs, columns), or (inputs, rows, columns).

    Two dimensions if rows are independent, with one block a row. Where the tensor has a scale of
    its own, some inputs have a first block that makes that scale 1.
    """
    alone = not rows_are_independent(form)
    with denormals.kept():
        blocks = [*_special(), *_largest(form, FEW_EXPONENTS if alone else range(-149, 128))]
        lists = [list(found(form)) for found in (_elements, near_ties, _scales)]
        beside = [block for blocks in lists for block in (_ends(blocks) if alone else blocks)]
        beside += _random(8 if alone else 64)
        if form.tensor_scale is None:
            return _stack([[block] for block in (*blocks, *beside)], form, alone)
        pin = (float(form.element.max * form.scale.max),)
        pinned = [[pin, block] for block in beside]
        return _stack([*([block] for block in blocks), *pinned], form, alone)


def largest_with_scale_one(form: BlockFormat) -> float:
    """A largest magnitude whose block has the scale 1, by whichever rule."""
    if has_power_of_two_scales(form):
        return 2.0 ** octave_of(form.element.max)
    return float(form.element.max)


def has_power_of_two_scales(form: BlockFormat) -> bool:
    """Whether every scale is one."""
    return form.scale.fraction_bits == 0


def near_ties(form: BlockFormat) -> Iterable[Block]:
    """Blocks (amax, x): x / scale and x * (1 / scale) in fp32 lie on different sides of a tie."""
    if has_power_of_two_scales(form):
        return []  # their reciprocals are exact
    values = finite_magnitudes(form.element)
    ties = as_fp32((a + b) / 2 for a, b in itertools.pairwise(values))
    top = np.float32(form.element.max)
    amax, scale = _scales_to_search(form, top)
    x = scale[:, None] * ties
    around = [x]
    for toward in (0, np.inf):
        step = np.nextafter(x, np.float32(toward))
        around += [step, np.nextafter(step, np.float32(toward))]
    x = np.stack(around, axis=-1)
    by = scale[:, None, None]
    divided, multiplied = (_rounded(q, form) for q in (x / by, x * (np.float32(1) / by)))
    where = np.nonzero(divided != multiplied)
    pairs = zip(amax[where[0]].tolist(), x[where].tolist(), strict=True)
    return sorted(pairs, key=sum)


def _scales_to_search(form: BlockFormat, top: np.float32) -> tuple[Floats, Floats]:
    """Largest magnitudes, and the scales they give: every one up to 8 bits, else drawn."""
    if form.scale.width <= 8:
        scale = as_fp32(finite_magnitudes(form.scale)[1:])
        return top * scale, scale
    drawn = np.random.default_rng(SEED).uniform(-8, 8, DRAWS)
    amax = np.exp2(drawn).astype(np.float32)
    return amax, amax / top


def _rounded(quotients: Floats, form: BlockFormat) -> Floats:
    return round_to(quotients, form.element, overflow="saturate")


def _special() -> Iterable[Block]:
    inf, nan = math.inf, math.nan
    return [(), (-0.0,), (inf, 1, 2), (-inf, 1, 2), (nan, 1, 2), (inf, nan, 1), (-0.0, 1)]


def _largest(form: BlockFormat, exponents: Iterable[int]) -> Iterable[Block]:
    """Largest magnitudes where scale rules change their mind, alone and beside a small element."""
    top = form.element.max / Fraction(2) ** octave_of(form.element.max)
    smallest = finite_magnitudes(form.element)[1] / Fraction(2) ** octave_of(form.element.max)
    found = {FP32_MAX, *FP32_TINY}
    for exponent in exponents:
        turns = as_fp32([Fraction(2) ** exponent, top * Fraction(2) ** exponent])
        found.update(with_neighbors(turns).tolist())
    for amax in sorted(found - {0.0}):
        yield (amax,)
        small = np.float32(1.25 * float(smallest) * 2.0 ** (math.frexp(amax)[1] - 1))
        if 0 < small < amax:
            yield (amax, float(small))


def _elements(form: BlockFormat) -> Iterable[Block]:
    """Values and ties of the element format and their neighbors, in a block of scale 1."""
    values = finite_magnitudes(form.element)
    ties = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    largest = largest_with_scale_one(form)
    for magnitude in with_neighbors(as_fp32([*values, *ties])).tolist():
        if magnitude <= largest:
            yield (largest, magnitude)
            yield (largest, -magnitude)


def _scales(form: BlockFormat) -> Iterable[Block]:
    """Largest magnitudes whose scale is a value or a tie of a short scale format."""
    if form.tensor_scale is None or form.scale.width > 8:
        return
    values = finite_magnitudes(form.scale)
    ties = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    largest = [form.element.max * value for value in (*values, *ties, values[1] / 4)]
    for magnitude in with_neighbors(as_fp32(largest)).tolist():
        if magnitude:
            yield (magnitude,)


def _random(count: int) -> list[Block]:
    drawn = np.random.default_rng(SEED).standard_normal((count, COLUMNS), np.float32)
    return drawn.tolist()


def _ends(blocks: list[Block]) -> list[Block]:
    """The first of a list and the last, half and half."""
    return blocks if len(blocks) <= FEW else blocks[: FEW // 2] + blocks[-FEW // 2 :]


def _stack(probes: Sequence[Sequence[Block]], form: BlockFormat, alone: bool) -> Tensor:
    """Probes of one or two blocks as one tensor; blocks lie below one another."""
    rows, columns = form.block if isinstance(form.block, tuple) else (1, COLUMNS)
    shape = (len(probes), rows * max(map(len, probes)), columns)
    stacked = np.zeros(shape, np.float32)
    for i, probe in enumerate(probes):
        for j, block in enumerate(probe):
            stacked[i, j * rows, : len(block)] = block[:columns]
    return torch.from_numpy(stacked if alone else stacked[:, 0])
