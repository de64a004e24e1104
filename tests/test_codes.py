"""Codes: encode, decode, pack and unpack against the exact ones and against ml_dtypes and Torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from floatscope.errors import FormatError
from floatscope.formats import FLOATS, FloatFormat, encode
from floatscope.rounding.anywhere import encode_anywhere
from floatscope.rounding.cast import cast_to
from floatscope.rounding.codes import code_dtype, decode_from, encode_to, pack, unpack
from floatscope.rounding.rules import ScalarFormat
from floatscope.rounding.tensors import round_to
from tests.test_formats import ORACLES, by_name
from tests.test_round_to import SCALARS, equal, holding, points

ids = [form.name for form in SCALARS]


@pytest.mark.parametrize("form", [f for f in SCALARS if f.width <= 16], ids=lambda f: f.name)
def test_every_code_decodes_and_encodes_back(form: ScalarFormat) -> None:
    codes = torch.arange(form.num_codes, dtype=torch.int32)
    dtype = holding(form, torch.float32)
    values = decode_from(codes, form, dtype=dtype)
    assert values.dtype == dtype
    again = encode_to(values, form)
    ordinary = ~values.isnan()
    assert torch.equal(again.int()[ordinary], codes[ordinary])
    if isinstance(form, FloatFormat) and form.has_nan:
        canonical = {form.nan_code, form.nan_code | form.sign_mask}  # type: ignore[operator]
        assert set(again[~ordinary].tolist()) <= canonical


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", SCALARS, ids=ids)
def test_codes_are_those_of_the_rounded_values(form: ScalarFormat, dtype: torch.dtype) -> None:
    x = points(form, dtype)
    if not (isinstance(form, FloatFormat) and form.has_nan):
        x = x[~x.isnan()]
    target = holding(form, dtype)
    values = round_to(x, form, dtype=target)
    codes = encode_to(x, form)
    assert codes.dtype == code_dtype(form)
    if isinstance(form, FloatFormat) and form.signed and form.has_nan:  # the oracle's NaN is +NaN
        codes = torch.where(values.isnan(), form.nan_code or 0, codes.long()).to(codes.dtype)
    expected = [
        encode(float(v), form) if isinstance(form, FloatFormat) else form.encode(int(v))
        for v in values.tolist()
    ]
    assert codes.tolist() == expected
    equal(decode_from(codes, form, dtype=target), values)
    elsewhere = torch.empty_like(codes)
    encode_anywhere(x, elsewhere, cast_to(form, None, None, None, None))
    assert torch.equal(elsewhere, encode_to(x, form))


SMALL = [f for f in FLOATS if f.name in ORACLES and f.width <= 16]


@pytest.mark.parametrize("form", SMALL, ids=lambda f: f.name)
def test_codes_agree_with_ml_dtypes(form: FloatFormat) -> None:
    x = points(form, torch.float32)
    x = x[~x.isnan()]
    width = np.uint8 if form.width <= 8 else np.uint16
    with np.errstate(all="ignore"):
        theirs = x.numpy().astype(ORACLES[form.name]).view(width)
    ours = encode_to(x, form, "ml_dtypes").numpy()
    different = ours != theirs
    if form.name == "e8m0fnu":  # ml_dtypes and Torch give 2^-126 there; 2^-127 is nearer
        fooled = (x.numpy() > 2.0**-127) & (x.numpy() < 1.5 * 2.0**-127)
        assert different.tolist() == fooled.tolist()
        assert not ours[fooled].any()
    else:
        assert not different.any()


@given(st.integers(1, 32), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_packing_is_reversible(width: int, numbers: list[int]) -> None:
    codes = torch.tensor([n % (1 << width) for n in numbers])
    packed = pack(codes, width)
    assert packed.dtype == torch.uint8
    assert packed.numel() == math.ceil(len(numbers) * width / 8)
    assert unpack(packed, width, len(numbers)).tolist() == codes.tolist()
    whole = sum(code << (i * width) for i, code in enumerate(codes.tolist()))
    assert int.from_bytes(bytes(packed.tolist()), "little") == whole


def test_two_codes_of_four_bits_lie_as_in_torch() -> None:
    codes = encode_to(torch.tensor([[0.5, -6.0, 1.0, 3.0]]), "e2m1fn")
    assert codes.tolist() == [[1, 15, 2, 5]]
    assert pack(codes, 4).tolist() == [[0xF1, 0x52]]
    odd = pack(codes[..., :3], 4)
    assert odd.tolist() == [[0xF1, 0x02]]
    assert unpack(odd, 4, 3).tolist() == [[1, 15, 2]]


def test_bad_input_is_refused() -> None:
    codes = torch.tensor([0, 300])
    cases: list[tuple[Any, str]] = [
        (lambda: decode_from(codes, "e4m3fn"), r"numbers above 0xff, e4m3fn's last code"),
        (lambda: decode_from(torch.tensor([-1]), "e4m3fn"), r"numbers above 0xff"),
        (lambda: decode_from(torch.zeros(2), "e4m3fn"), "codes are integers, not torch.float32"),
        (lambda: decode_from(codes, "fp16", dtype=torch.bfloat16), "bfloat16 does not hold fp16"),
        (lambda: encode_to(codes, "e4m3fn"), "floating-point tensors, not torch.int64"),
        (lambda: encode_to(torch.zeros(2), "mxfp4"), "mxfp4 is a block format"),
        (
            lambda: encode_to(torch.zeros(2), "fp16", rounding="stochastic", random_bits=33),
            "1 to 32 random bits, not 33",
        ),
        (lambda: encode_to(torch.tensor([math.nan]), "e2m1fn"), "e2m1fn has no NaN, and 1 of 1"),
        (lambda: unpack(torch.zeros(2, dtype=torch.uint8), 6, 3), "2 bytes hold 2 codes of 6 bits"),
        (lambda: pack(codes, 0), "1 to 32 bits"),
    ]
    for call, message in cases:
        with pytest.raises(FormatError, match=message):
            call()


def test_wide_formats_decode_by_formula() -> None:
    for name in ("fp32", "tf32", "fp64"):
        form = by_name(name)
        dtype = holding(form, torch.float32)
        x = points(form, dtype)
        equal(decode_from(encode_to(x, form), form, dtype=dtype), round_to(x, form, dtype=dtype))
