"""`round_to`: every backend against the oracle, the libraries, and its own promises."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.formats import FLOATS, INTEGERS, FloatFormat, classify, decode
from floatscope.formats import format as format_called
from floatscope.rounding import Rounding, round_to, round_value, rules_for
from floatscope.rounding.anywhere import round_anywhere
from floatscope.rounding.cast import cast_to, check_holds
from floatscope.rounding.on_cpu import round_cpu
from floatscope.rounding.random_bits import random_bits
from floatscope.rounding.rules import ScalarFormat

MODES: list[Any] = list(get_args(Rounding))
SCALARS: list[ScalarFormat] = [
    *FLOATS,
    *INTEGERS,
    *map(format_called, ("e7m9", "e6m3fnuz", "e8m3fnuz", "e1m2", "e4m0", "e11m10")),
]  # type: ignore[list-item]
ids = [form.name for form in SCALARS]
BACKENDS = {"numba": round_cpu, "torch": round_anywhere}


def points(form: ScalarFormat, dtype: torch.dtype) -> Tensor:
    """Values, ties and neighbors of a format, its ends, and every kind of special input."""
    rng = np.random.default_rng(1)
    if isinstance(form, FloatFormat):
        codes = range(form.num_codes) if form.width <= 8 else _some_codes(form)
        finite = {
            abs(Fraction(decode(code, form)))
            for code in codes
            if classify(code, form) not in ("nan", "infinite")
        }
        ends = [form.max, form.overflow_threshold, 2 * form.max, form.smallest, form.smallest / 2]
        ends += [form.smallest_normal, form.smallest_normal / 2, form.smallest / 4]
    else:
        finite = {Fraction(code) * form.step for code in range(1 << (form.width - 1))}
        ends = [form.max + form.step / 2, form.max + form.step, form.max + 3 * form.step / 2]
    ordered = sorted(finite)
    ties = [(a + b) / 2 for a, b in itertools.pairwise(ordered)]
    exact = [float(v) for v in (*ordered, *ties, *ends) if v < 2**1023]
    number = np.float32 if dtype == torch.float32 else np.float64
    tiny = np.array([0.0, 1e-45, 1e-40, np.inf, np.nan], number)
    spread = rng.integers(0, 1 << 32, 500, dtype=np.uint64).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        near = np.array(exact, number)
        around = [np.nextafter(near, number(0)), np.nextafter(near, number(np.inf))]
        both = np.concatenate([near, *around, spread.astype(number), tiny])
    return torch.from_numpy(np.concatenate([both, -both]))


def _some_codes(form: FloatFormat) -> list[int]:
    rng = np.random.default_rng(0)
    edges = {0, 1, 2, 3, (form.sign_mask or form.num_codes) - 1}
    hidden = 1 << form.fraction_bits
    edges |= {hidden - 1, hidden, hidden + 1, 2 * hidden}
    random = {int(c) for c in rng.integers(0, form.num_codes - 1, 60, dtype=np.uint64)}
    return sorted(edges | random | {c + 1 for c in random})


def equal(ours: Tensor, theirs: Tensor) -> None:
    """The same bits, with all NaNs alike."""
    different = ~((ours == theirs) & (ours.signbit() == theirs.signbit()))
    different &= ~(ours.isnan() & theirs.isnan())
    assert not different.any(), (
        different.nonzero()[:5],
        ours[different][:5],
        theirs[different][:5],
    )


def holding(form: ScalarFormat, dtype: torch.dtype) -> torch.dtype:
    try:
        check_holds(dtype, form)
    except FormatError:
        return torch.float64
    return dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", SCALARS, ids=ids)
def test_backends_equal_the_oracle(form: ScalarFormat, mode: Any, dtype: torch.dtype) -> None:
    rules = rules_for(form)
    x = points(form, dtype)
    if rules.nan == "raise":
        x = x[~x.isnan()]
    key, bits = 0x0123_4567_89AB_CDEF, 32 if len(form.name) % 2 else 7
    expected = torch.tensor(
        [
            float(
                round_value(
                    value,
                    form,
                    rounding=mode,
                    random=random_bits(key, i) >> (32 - bits),
                    random_bits=bits,
                )
            )
            for i, value in enumerate(x.tolist())
        ],
        dtype=torch.float64,
    )
    target = holding(form, dtype)
    ours = round_to(x, form, rounding=mode, key=key, random_bits=bits, dtype=target)
    equal(ours.double(), expected)
    cast = cast_to(form, None, mode, None, None)
    cast = type(cast)(cast.form, cast.rules, key, bits)
    elsewhere = torch.empty_like(ours)
    counts = round_anywhere(x, elsewhere, cast)
    equal(elsewhere.double(), expected)
    assert counts.tolist() == round_cpu(x, torch.empty_like(ours), cast).tolist()
