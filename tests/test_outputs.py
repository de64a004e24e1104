"""Given outputs, overlapping memory, and tensors that only stand for memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from floatscope.errors import FormatError
from floatscope.rounding import Receipt, block_round, encode_to, pack, round_to, rules_for, unpack


def test_an_output_may_overlap_the_input() -> None:
    for start in (1, 7):
        whole = torch.linspace(-3, 3, 64)
        expected = round_to(whole[:-start], "e4m3fn")
        round_to(whole[:-start], "e4m3fn", out=whole[start:])
        assert torch.equal(whole[start:], expected)
        array = np.linspace(-3, 3, 64, dtype=np.float32)
        round_to(array[:-start], "e4m3fn", out=array[start:])
        assert np.array_equal(array[start:], expected.numpy())
    whole = torch.linspace(-3, 3, 65)
    expected = block_round(whole[:-1], "mxfp8-e4m3").values
    assert torch.equal(block_round(whole[:-1], "mxfp8-e4m3", out=whole[1:]).values, expected)
    memory = torch.linspace(-3, 3, 64)
    expected = encode_to(memory[:32], "bf16")
    codes = memory.view(torch.uint16)[4:36]
    assert torch.equal(encode_to(memory[:32], "bf16", out=codes).int(), expected.int())


@pytest.mark.parametrize(
    "overwrite",
    [
        lambda b: round_to(b, "e4m3fn", out=b),
        lambda b: round_to(b.mT, "e4m3fn", out=b.mT),
        lambda b: block_round(b, "mxfp8-e4m3", out=b),
    ],
)
def test_autograd_knows_of_overwritten_outputs(overwrite: Any) -> None:
    a = torch.randn(4, 32, requires_grad=True)
    b = a.exp()  # its backward needs the result
    with torch.no_grad():
        overwrite(b)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        b.sum().backward()


@pytest.mark.parametrize(
    "call",
    [
        lambda z: round_to(z, "e4m3fn"),
        lambda z: encode_to(z, "e4m3fn"),
        lambda z: block_round(z, "mxfp8-e4m3").values,
    ],
)
def test_tensors_without_memory_of_their_own_are_refused(call: Any) -> None:
    x = torch.randn(2, 32)
    attempts = [
        lambda: torch.func.functionalize(call)(x),
        lambda: torch.func.vmap(call)(x),
        lambda: make_fx(call)(x),
        lambda: call(FakeTensorMode().from_tensor(x)),
    ]
    for attempt in attempts:
        with pytest.raises(FormatError, match="looks into memory.*outside of them"):
            attempt()
    call(torch.nn.Parameter(x, requires_grad=False))


def test_one_scale_for_a_tensor_knows_no_axis() -> None:
    x = torch.randn(2, 3, 4, 5)
    for axis in range(-4, 4):
        assert torch.equal(
            block_round(x, "fp8-tensor", axis=axis).values, block_round(x, "fp8-tensor").values
        )


def test_packing_refuses_what_is_no_code() -> None:
    cases: list[tuple[Any, str]] = [
        (lambda: pack(torch.tensor([200, 3]), 4), "no codes of 4 bits"),
        (lambda: pack(torch.tensor([-1, 3], dtype=torch.int8), 4), "no codes of 4 bits"),
        (lambda: pack(torch.tensor([1.0]), 4), "tensors of integers, not torch.float32"),
        (lambda: unpack(torch.tensor([300]), 4, 1), "takes uint8 and a count, not torch.int64"),
        (lambda: unpack(torch.tensor([3], dtype=torch.uint8), 4, -1), "uint8 and -1"),
    ]
    for call, message in cases:
        with pytest.raises(FormatError, match=message):
            call()


def test_small_courtesies() -> None:
    empty = torch.empty(3, 4, device="meta")
    assert round_to(empty, "fp16", receipt=Receipt()).is_meta
    assert rules_for("fp16") == rules_for("half")
    with pytest.raises(FormatError, match="mxfp4 is a block format"):
        rules_for("mxfp4")
    x = torch.randn(8)
    one = round_to(x, "bf16", rounding="stochastic", key=np.int64(5))  # type: ignore[arg-type]
    assert torch.equal(one, round_to(x, "bf16", rounding="stochastic", key=5))
    with pytest.raises(FormatError, match="a StochasticKey or an integer, not 1.5"):
        round_to(x, "bf16", rounding="stochastic", key=1.5)  # type: ignore[arg-type]
