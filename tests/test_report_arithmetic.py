"""The page's arithmetic is the library's, bit for bit."""

from __future__ import annotations

import math
import random
import re
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from floatscope.errors import FormatError
from floatscope.formats import (
    CATALOGUE,
    BlockFormat,
    FloatFormat,
    IntFormat,
    ScaleRule,
    classify,
    decode,
    encode,
    neighbors,
    ulp,
)
from floatscope.formats.catalogue import E4M3FN, E8M0FNU, FP32
from floatscope.formats.show import exact_decimal, shown
from floatscope.formats.values import Value, exactly
from floatscope.lab.probe.answers import percent
from floatscope.report.counts import FORMATS, counts_data
from floatscope.report.counts import format_data as line_format
from floatscope.report.instruments import ELEMENTS, element_data, format_data
from floatscope.report.scripts import PAGE, joined, source
from floatscope.report.sections.number_line import LEAST, MOST
from floatscope.rounding import Receipt, block_round, round_value
from floatscope.spectrum.spectrum import Spectrum
from tests.page_tools import answers

SCALARS = [form for form in CATALOGUE.values() if isinstance(form, (FloatFormat, IntFormat))]
NUMBERS = (
    "0 -0 1 -1 0.1 -0.1 1/3 65504 65519.999 65520 -65520 448 449 464 464.0001 480 6 5 2.5 3.5 7 "
    "127 127.5 128 -128 -128.5 1e-3 -3.14159265358979 5.9604644775390625e-8 2.98023223876953125e-8 "
    "2.9802322387695313e-8 0x1p-24 0x1p-25 0x1.8p-25 0x1.fffp-15 0x1.ff8p-15 6e-8 1e-45 1e40 -1e40 "
    "1e-400 1e400 5e-324 2.4703282292062327e-324 1.7976931348623157e308 1.7976931348623159e308 inf "
    "-inf nan 0x1p-127 0x1.000002p-127 3e38 0x1p-133 0x1p-134 0x1.8p-134 57344 61440 61439 28 30 "
    "123456789.5 0.0001 9.999999999 1e9 1234567890123"
).split()


def neighborhood(value: Value, form: FloatFormat | IntFormat) -> list[str]:
    """The neighbors of a stored value, as the page writes them."""
    if isinstance(form, IntFormat):
        below, above = value - form.step, value + form.step
        found = [below if below >= form.min else None, above if above <= form.max else None]
        return [shown(v) for v in found]
    digits = 2 + math.ceil(form.precision * math.log10(2))
    return [shown(v, digits) for v in neighbors(value, form)]


def expected_number(text: str, form: FloatFormat | IntFormat) -> dict[str, Any] | None:
    exact = exactly(text)
    try:
        stored = round_value(exact, form)
    except FormatError:
        return None
    is_nan = stored != stored
    is_finite = isinstance(stored, Fraction) or stored == 0
    step = form.step if isinstance(form, IntFormat) else None
    code = form.encode(Fraction(stored)) if isinstance(form, IntFormat) else None
    if code is None and not is_nan:
        code = encode(stored, form)
    return {
        "code": "nan" if is_nan else str(code),
        "stored": shown(stored, 17),
        "neighbors": None if is_nan else neighborhood(stored, form),
        "ulp": shown(step or ulp(stored, form)) if is_finite else None,
        "error": shown(Fraction(stored) - Fraction(exact))
        if is_finite and (isinstance(exact, Fraction) or exact == 0)
        else None,
    }


@pytest.mark.parametrize("form", SCALARS, ids=lambda form: form.name)
def test_numbers_become_the_same(form: FloatFormat | IntFormat) -> None:
    draw = random.Random(7)
    texts = [*NUMBERS, *(f"{draw.uniform(-9, 9)}e{draw.randint(-12, 12)}" for _ in range(60))]
    data = format_data(form)
    found = answers([{"task": "number", "text": text, "form": data} for text in texts])
    for text, answer in zip(texts, found, strict=True):
        assert answer == expected_number(text, form), (form.name, text)


def test_codes_mean_the_same() -> None:
    tasks, expected = [], []
    draw = random.Random(3)
    for form in SCALARS:
        size = form.num_codes
        codes = range(size) if size <= 256 else [draw.randrange(size) for _ in range(200)]
        for code in codes:
            tasks.append({"task": "code", "code": str(code), "form": format_data(form)})
            value = form.decode(code) if isinstance(form, IntFormat) else decode(code, form)
            kind = ("normal" if code else "zero") if isinstance(form, IntFormat) else classify(
                code, form)  # fmt: skip
            text = exact_decimal(value) if isinstance(value, Fraction) else shown(value)
            expected.append({"kind": kind, "value": text})
    assert answers(tasks) == expected


def test_numbers_are_written_the_same() -> None:
    tasks = [{"task": "shown", "text": t, "digits": d} for t in NUMBERS for d in (3, 6, 17)]
    assert answers(tasks) == [shown(exactly(t["text"]), t["digits"]) for t in tasks]
    assert answers([{"task": "shown", "text": t, "digits": 6} for t in ("", "1e99999", "x", "1/0")]
                   ) == [None] * 4  # fmt: skip


def test_casts_of_spectra_at_every_scale() -> None:
    torch.manual_seed(0)
    parts = [
        Spectrum.of(torch.randn(3000) * 2.0**-18 * torch.exp(3 * torch.randn(3000))),
        Spectrum.of(torch.tensor([0.0, 2.0**-149, 2.0**-25, 65519.0, 65520.0, 464.0, 3e38, 1e-8])),
        Spectrum.empty(),
    ]
    total = Spectrum.sum(parts)
    tasks, expected = [], []
    for name in FORMATS:
        sweep = total.sweep(name, range(LEAST, MOST + 1))
        for place, exponent in enumerate(range(LEAST, MOST + 1)):
            tasks.append({"task": "cast", "parts": [*map(counts_data, parts)],
                          "form": line_format(name), "exponent": exponent})  # fmt: skip
            expected.append({
                "underflow": int(sweep.underflow[place]), "subnormal": int(sweep.subnormal[place]),
                "overflow": int(sweep.overflow[place]), "of": sweep.of,
            })  # fmt: skip
    assert answers(tasks) == expected


def test_percentages_are_written_the_same() -> None:
    pairs = [(0, 5), (1, 3), (5, 5), (1, 10**9), (1, 10**7), (3, 10**6), (7, 1000), (99, 10**4),
             (12345, 10**6), (3688703, 3688704), (25, 10**8), (1, 2 * 10**6), (49, 400), (1, 800),
             (3, 800)]  # fmt: skip
    found = answers([{"task": "percent", "count": c, "of": of} for c, of in pairs])
    assert found == [percent(c / of) for c, of in pairs]


def bits(values: np.ndarray) -> list[int | str]:
    return ["nan" if math.isnan(v) else struct.unpack("<I", struct.pack("<f", v))[0]
            for v in values.tolist()]  # fmt: skip


def matrices() -> list[np.ndarray]:
    draw = np.random.default_rng(5)
    wide = draw.standard_normal((3, 40)) * np.exp2(draw.integers(-40, 30, (3, 40)))
    plain = draw.standard_normal((4, 33))
    ties = np.outer([1, 2.0**-140, 2.0**100], np.arange(-17, 19) / 4)
    special = np.zeros((2, 16))
    special[0, :6] = [np.inf, -1, 0.5, -0.0, 3, 1e-40]
    special[1, :4] = [np.nan, 1, -2, 0]
    return [m.astype(np.float32) for m in (wide, plain, ties, special, np.zeros((1, 5)))]


RULES = {"amax": (ScaleRule.AMAX, FP32), "floor": (ScaleRule.FLOOR, E8M0FNU),
         "rceil": (ScaleRule.RCEIL, E8M0FNU), "nvfp4": (ScaleRule.NVFP4, E4M3FN)}  # fmt: skip
SPANS: dict[int, Any] = {-1: "tensor", 0: "row", 32: (1, 32), 16: (1, 16)}


@pytest.mark.parametrize("rule", RULES)
def test_blocks_are_rounded_the_same(rule: str) -> None:
    tasks, expected = [], []
    scale_rule, scale = RULES[rule]
    for element in ELEMENTS:
        if rule == "nvfp4" and element.name != "e2m1fn":
            continue
        for matrix in matrices():
            for span, block in SPANS.items():
                form = BlockFormat("bench", element=element, block=block, scale=scale,
                                   rule=scale_rule)  # fmt: skip
                receipt = Receipt()
                rounded = block_round(torch.from_numpy(matrix), form, receipt=receipt)
                tasks.append({
                    "task": "block", "bits": matrix.ravel().view(np.uint32).tolist(),
                    "columns": matrix.shape[1], "element": element_data(element), "rule": rule,
                    "block": span,
                })  # fmt: skip
                expected.append((element.name, span, bits(rounded.values.numpy().ravel()),
                                 receipt.saturated))  # fmt: skip
    for answer, (name, span, values, saturated) in zip(answers(tasks), expected, strict=True):
        assert answer["values"] == values, (rule, name, span)
        assert answer["saturated"] == saturated, (rule, name, span)


def test_modules_join_without_a_clash() -> None:
    names: dict[str, str] = {}
    for path in PAGE.glob("*.js"):
        if path.stem in ("main", "explore"):
            continue
        found = re.findall(
            r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", source(path.stem), re.M
        )
        for name in found:
            assert name not in names, f"{name} is in {path.stem} and in {names[name]}"
            names[name] = path.stem
    for entry in ("main", "explore"):
        text = joined(entry)
        assert not re.search(r"^(import|export) ", text, re.MULTILINE)
        assert "</script" not in text
