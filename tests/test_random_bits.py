"""The random bits of stochastic rounding: fixed vectors, equal everywhere, and good enough."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from floatscope.errors import FormatError
from floatscope.rounding import StochasticKey, round_to
from floatscope.rounding.kernels.numba_bits import random_word
from floatscope.rounding.kernels.numba_bits import words as words_on_cpu
from floatscope.rounding.kernels.torch_elements import random_words
from floatscope.rounding.random_bits import random_bits, words

VECTORS = [
    (0x0, 0x0, 0x00000000),
    (0x0, 0x1, 0x86D2FA73),
    (0x1, 0x0, 0xFA79E664),
    (0x123456789ABCDEF, 0x0, 0x420EB32B),
    (0x123456789ABCDEF, 0x3039, 0xA6916703),
    (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF, 0x0EF10C28),
    (0x2A, 0x100000000, 0xA6117B54),
    (0x2A, 0x10000000007, 0xD1F22DDA),
    (0x7, 0x8000000000000005, 0xD093B083),
]


def test_vectors() -> None:
    """These may never change: records of training runs depend on them."""
    for key, index, expected in VECTORS:
        assert random_bits(key, index) == expected
    assert StochasticKey(1337).value() == 0xF603193775165BF9
    assert (
        StochasticKey(1337, 1, 2, 3, "blocks.0.mlp.up", "weight", 4).value() == 0x2E960F2E89402834
    )


def test_kernels_draw_the_same() -> None:
    for key, index, expected in VECTORS:
        first, second = words_on_cpu(np.uint64(key), np.uint64(index >> 32))
        assert (first, second) == words(key, index >> 32)
        here = random_word(np.uint32(index & 0xFFFF_FFFF), np.uint32(first), np.uint32(second))
        assert here == expected
        if index < 1 << 63:  # Torch's integers end there
            assert random_words(torch.tensor([index]), key).item() == expected


def test_every_field_makes_another_key() -> None:
    base = StochasticKey(1)
    fields = {
        "seed": 2,
        "rank": 1,
        "step": 1,
        "micro_step": 1,
        "module": "a",
        "role": "b",
        "call": 1,
    }
    others = [replace(base, **{name: value}) for name, value in fields.items()]
    assert len({key.value() for key in [base, *others]}) == 1 + len(fields)
    assert (
        replace(base, module="ab", role="c").value() != replace(base, module="a", role="bc").value()
    )


def draws(key: int, count: int, start: int = 0) -> np.ndarray:
    return random_words(torch.arange(start, start + count), key).numpy()


@pytest.mark.parametrize("key", [0, 1, 0xDEAD_BEEF_0123_4567])
@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_each_byte_is_uniform(key: int, shift: int) -> None:
    counts = np.bincount(draws(key, 1 << 18) >> shift & 0xFF, minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_neighbors_steps_and_keys_are_uncorrelated() -> None:
    """Bit by bit, between neighboring elements, neighboring keys and distant blocks of elements."""
    count = 1 << 16
    base = draws(5, count)
    others = [
        draws(5, count, 1),
        draws(6, count),
        draws(5 + (1 << 32), count),
        draws(5, count, 1 << 32),
    ]
    bound = 5 / math.sqrt(count)  # five standard deviations of a correlation of independent bits
    worst = 0.0
    for other in others:
        for bit in range(0, 32, 3):
            for their in range(0, 32, 5):
                ours = 2.0 * (base >> bit & 1) - 1
                worst = max(worst, abs(float((ours * (2.0 * (other >> their & 1) - 1)).mean())))
    assert worst < bound


def test_two_keys_are_not_one_stream_reordered() -> None:
    """What hash(i ^ seed) would be: the same set of numbers."""
    a, b = draws(1, 1 << 12), draws(2, 1 << 12)
    assert len(np.intersect1d(a, b)) < 10


def test_rounding_depends_on_key_and_index_alone() -> None:
    x = torch.randn(300_000, generator=torch.Generator().manual_seed(0))
    whole = round_to(x, "bf16", rounding="stochastic", key=9)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        again = round_to(x.view(300, 1000), "bf16", rounding="stochastic", key=9)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(again.view(-1), whole)
    strided = x.view(300, 1000).mT.contiguous().mT
    assert torch.equal(round_to(strided, "bf16", rounding="stochastic", key=9).reshape(-1), whole)
    assert not torch.equal(round_to(x, "bf16", rounding="stochastic", key=10), whole)


def test_generators_seed_it() -> None:
    x = torch.randn(1000)
    one = round_to(x, "e5m2", rounding="stochastic", generator=torch.Generator().manual_seed(3))
    two = round_to(x, "e5m2", rounding="stochastic", generator=torch.Generator().manual_seed(3))
    assert torch.equal(one, two)
    torch.manual_seed(4)
    three = round_to(x, "e5m2", rounding="stochastic")
    torch.manual_seed(4)
    assert torch.equal(round_to(x, "e5m2", rounding="stochastic"), three)
    with pytest.raises(FormatError, match="a key or a generator, not both"):
        round_to(x, "e5m2", rounding="stochastic", key=1, generator=torch.Generator())
    with pytest.raises(FormatError, match="1 to 32 random bits, not 33"):
        round_to(x, "e5m2", rounding="stochastic", random_bits=33)


@pytest.mark.parametrize("bits", [1, 4, 32])
def test_unbiased_within_the_bound_of_its_bits(bits: int) -> None:
    """A coin of n throws has a standard deviation of at most 1 / (2 sqrt(n)); five of them."""
    n = 1 << 18
    for part in (0.1, 0.5, 0.9):
        x = torch.full((n,), 1 + part / 8)
        rounded = round_to(x, "e4m3fn", rounding="stochastic", key=bits, random_bits=bits)
        assert set(rounded.tolist()) <= {1.0, 1.125}
        share = float((rounded == 1.125).double().mean())
        assert abs(share - part) <= 2.0**-bits / 2 + 5 / (2 * math.sqrt(n))
