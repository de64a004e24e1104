"""Tallies: every backend against the exact oracle, wherever and however tensors lie."""

from __future__ import annotations

import faulthandler
import os
import threading
import warnings
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from floatscope.errors import FormatError
from floatscope.rounding import denormals
from floatscope.rounding.cast import DTYPES
from floatscope.spectrum import anywhere
from floatscope.spectrum.anywhere import by_pieces, tally_anywhere, tally_torch
from floatscope.spectrum.cells import STRIDE, key_of, octave_of
from floatscope.spectrum.kernels import numba_tally
from floatscope.spectrum.measure import measure
from floatscope.spectrum.on_cpu import tally_cpu
from floatscope.spectrum.spectrum import Spectrum
from floatscope.spectrum.tally import FP32, FP64, OTHERS, SIGNIFICAND_BITS, Layout

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
TWO_BYTES = (torch.float16, torch.bfloat16)
CHUNK, PIECE = numba_tally.CHUNK, numba_tally.PIECE


def layout_of(dtype: torch.dtype) -> Layout:
    return FP64 if dtype == torch.float64 else FP32


@cache
def place_of(magnitude: float) -> tuple[int, int, int]:
    """Octave, class and significand rounded half up."""
    exact = Fraction(magnitude)
    octave, kind = divmod(key_of(exact), STRIDE)
    significand = exact / Fraction(2) ** octave_of(exact)
    return octave, kind, int(significand * 2 ** (SIGNIFICAND_BITS - 1) + Fraction(1, 2))


def oracle(x: Tensor) -> Tensor:
    """The tally by its definition, in exact rationals."""
    layout = layout_of(x.dtype)
    carrier = np.float32 if layout is FP32 else np.float64
    tally = np.zeros(layout.size, np.int64)
    others = dict(zip(OTHERS, range(layout.size - len(OTHERS), layout.size), strict=True))
    bits, counts = np.unique(
        x.detach().double().numpy().reshape(-1).view(np.int64), return_counts=True
    )
    for value, count in zip(bits.view(np.float64).tolist(), counts.tolist(), strict=True):
        sign = "negative" if np.signbit(value) else "positive"
        if np.isnan(value):
            tally[others["nans"]] += count
        elif np.isinf(value):
            tally[others[f"{sign}_infinities"]] += count
        elif value == 0:
            tally[others[f"{sign}_zeros"]] += count
        else:
            octave, kind, m = place_of(abs(value))
            row = octave - layout.lowest_octave
            tally[row * layout.num_classes + kind] += count
            tally[layout.num_cells + row] += count * m * m
            word = carrier(abs(value)).view(np.uint32 if layout is FP32 else np.uint64)
            tally[others["amax"]] = max(tally[others["amax"]], int(word))
    return torch.from_numpy(tally)


def every_code(dtype: torch.dtype) -> Tensor:
    """All patterns of a dtype of one or two bytes."""
    return torch.arange(1 << 8 * dtype.itemsize).to(INTEGERS[dtype.itemsize]).view(dtype)


def edges(dtype: torch.dtype) -> Tensor:
    """fp32 or fp64: powers of two, edges of classes, their neighbors, and some of all else."""
    layout = layout_of(dtype)
    p, top = layout.fraction_bits, (1 << (layout.width - 1 - layout.fraction_bits)) - 1
    at = {f << p for f in range(top)} | {1 << k for k in range(p)}
    for k in range(1, p + 1):  # octaves of subnormal numbers of k fraction bits, and some others
        distances = {1 << j for j in range(k + 1)} | {3 << j for j in range(k - 1)}
        fractions = {(1 << k) - d for d in distances}
        fields = (0, 1, 2, top // 2 - 40, top // 2, top - 1) if k == p else ()
        at |= {(1 << k) + f for f in fractions if k < p}
        at |= {(field << p) + f for field in fields for f in fractions}
    near = {a + step for a in at for step in (-1, 0, 1)} - {-1}
    infinity = top << p
    near |= {infinity, infinity + 1, infinity + (1 << (p - 1)), (1 << (layout.width - 1)) - 1}
    random = np.random.default_rng(1).integers(0, 1 << (layout.width - 1), 500).tolist()
    magnitudes = torch.tensor(sorted(near | {*random}))
    low = -(1 << (layout.width - 1))
    return torch.cat([magnitudes, magnitudes + low]).to(INTEGERS[dtype.itemsize]).view(dtype)


def numbers(dtype: torch.dtype, size: int, seed: int = 0) -> Tensor:
    """Numbers of many octaves, some zero, subnormal, infinite or NaN; 200 different ones."""
    rng = np.random.default_rng(seed)
    few = rng.normal(0, 1, 200) * 2.0 ** rng.integers(-30, 12, 200)
    few[:8] = 0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-130, -(2.0**-140), 6e-8
    return torch.from_numpy(few).to(dtype)[torch.from_numpy(rng.integers(0, 200, size))]


def check(x: Tensor, expected: Tensor | None = None) -> None:
    """All ways to the tally of `x`, as it lies and by every backend, give the oracle's."""
    expected = oracle(x) if expected is None else expected
    layout = layout_of(x.dtype)
    measured = measure(x)
    assert measured.layout is layout
    assert torch.equal(torch.as_tensor(measured.tally), expected)
    flat = x.detach().resolve_neg().contiguous().view(-1)
    assert torch.equal(tally_torch(flat, layout), expected)
    assert torch.equal(by_pieces(flat, layout), expected)
    if layout is FP32:
        assert np.array_equal(tally_cpu(flat), expected.numpy())


# What is counted


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.itemsize <= 2], ids=str)
def test_every_code_of_the_small_dtypes(dtype: torch.dtype) -> None:
    check(every_code(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_of_two_and_edges_of_classes(dtype: torch.dtype) -> None:
    check(edges(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, *TWO_BYTES], ids=str)
def test_a_number_that_is_alone_of_its_kind(dtype: torch.dtype) -> None:
    """The CPU kernel looks at a chunk before it counts it: here each number has one of its own."""
    some = edges(dtype) if dtype == torch.float32 else every_code(dtype)[::9]
    chunks = torch.ones(2 * len(some), CHUNK, dtype=dtype)
    chunks[::2, 77] = some
    expected = oracle(some) + oracle(torch.ones(1, dtype=dtype)) * (chunks.numel() - len(some))
    expected[-1] = max(oracle(some)[-1], oracle(torch.ones(1))[-1])
    assert np.array_equal(tally_cpu(chunks), expected.numpy())


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("value", [1.0, 2 - 2.0**-23, 2.0**-40, 0.0])
def test_many_in_one_cell(value: float, place: int) -> None:
    """Beside far ones, for which the CPU kernel takes fewer tables."""
    size = 2 * PIECE + 1
    x = torch.full((size,), value)
    x[place::CHUNK] = 2.0**-120
    far = len(x[place::CHUNK])
    one, other = oracle(x[2:3]), oracle(x[place : place + 1])
    expected = one * (size - far) + other * far
    expected[-1] = max(one[-1], other[-1])
    assert np.array_equal(tally_cpu(x), expected.numpy())
    assert torch.equal(tally_torch(x, FP32), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-130, 1.0])
def test_equal_elements(value: float, dtype: torch.dtype) -> None:
    x = torch.full((CHUNK + 5,), value, dtype=torch.float64).to(dtype)
    check(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *TWO_BYTES], ids=str)
def test_only_subnormals(dtype: torch.dtype) -> None:
    smallest_normal = round(1 / torch.finfo(dtype).eps)
    bits = torch.tensor([*range(1, 128), *range(smallest_normal - 127, smallest_normal)])
    x = bits.repeat(17).to(INTEGERS[dtype.itemsize]).view(dtype)
    assert Spectrum.of(x).subnormals == x.numel()
    check(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_measured_dtype(dtype: torch.dtype) -> None:
    form = DTYPES[dtype]
    x = numbers(dtype, 3000)
    magnitudes = x.double().abs()
    small = (magnitudes > 0) & (magnitudes < float(form.smallest_normal))
    spectrum = Spectrum.of(x)
    assert spectrum.fraction_bits == form.fraction_bits
    assert spectrum.subnormals == small.sum()
    assert spectrum.num_elements == 3000
    assert spectrum.amax == magnitudes[magnitudes.isfinite()].max()


# Sizes and strides


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *TWO_BYTES], ids=str)
def test_small_sizes(dtype: torch.dtype) -> None:
    for size in (0, 1, 2, 7, 15, 16, 17, 31, 33, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 19):
        check(numbers(dtype, size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e4m3fn], ids=str)
def test_sizes_around_a_piece(dtype: torch.dtype) -> None:
    for size in (PIECE - 1, PIECE, PIECE + 1):
        x = numbers(dtype, size)
        assert np.array_equal(tally_cpu(x), oracle(x).numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float8_e5m2], ids=str)
def test_sizes_around_a_piece_of_torch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anywhere, "PIECE", 1000)
    monkeypatch.setattr(anywhere, "CPU_PIECE", 1500)
    for size in (999, 1000, 1001, 1501, 3000, 4500):
        check(numbers(dtype, size))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides(dtype: torch.dtype) -> None:
    x = numbers(dtype, 6000).view(20, 30, 10)
    for y in (
        x.transpose(0, 2),
        x[::3, 1:, 2:9:2],
        x.flip(1),
        x[:, :1].expand(20, 50, 10),
        x[3, 4, 5],
        x.view(-1)[1:],
        x.view(-1)[3::7],
        x.view(5, 4, 30, 10).permute(0, 3, 1, 2),
        x.view(-1).as_strided((50, 100), (7, 13)),
    ):
        check(y)


def test_other_kinds_of_tensors() -> None:
    class Named(Tensor):
        pass

    class Distributed(Tensor):
        def to_local(self) -> Tensor:
            return self.as_subclass(Tensor)[:1000]

    x = numbers(torch.float32, 3000)
    check(Parameter(x))
    check(Parameter(x) * 2)  # has a history
    check(x.as_subclass(Named))
    with torch.inference_mode():
        check(x.clone())
    for negated in (
        torch.complex(x, x).conj().imag,
        torch.complex(x.double(), x.double()).conj().imag,
    ):
        assert negated.is_neg()
        check(negated, oracle(-(x if negated.dtype == x.dtype else x.double())))
    check(torch.complex(x, x).real)
    assert Spectrum.of(x.as_subclass(Distributed)) == Spectrum.of(x[:1000])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy_arrays(dtype: Any) -> None:
    x = numbers(torch.float64, 6000).numpy().astype(dtype).reshape(60, 100)
    fixed = x.copy()
    fixed.setflags(write=False)
    swapped = x.astype(x.dtype.newbyteorder())
    for array in (x, x.T, x[::-1, ::-2], np.broadcast_to(x[0], (7, 100)), x[3, 4:5].reshape(())):
        assert Spectrum.of(array) == Spectrum.of(torch.from_numpy(array.copy()))
    for size in (0, 1, 2):  # NumPy calls the first two contiguous
        assert Spectrum.of(x[0, size::-1][:size]).num_elements == size
    for array in (fixed, swapped):
        assert Spectrum.of(array) == Spectrum.of(torch.from_numpy(x))
    assert Spectrum.of(x[:0]) == Spectrum.empty()


# Surroundings


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def inputs() -> list[Tensor]:
    """Enough for several pieces of every backend."""
    return [
        numbers(torch.float32, 3 * PIECE + 5, 1),
        numbers(torch.bfloat16, 3 * PIECE + 5, 2),
        numbers(torch.float8_e5m2, 2 * PIECE + 5, 3),
        numbers(torch.float64, 5 * anywhere.CPU_PIECE + 5, 4),
    ]


def all_equal(tensors: list[Tensor], expected: list[Spectrum]) -> bool:
    return all(Spectrum.of(x) == e for x, e in zip(tensors, expected, strict=True))


@pytest.mark.usefixtures("two_threads")
def test_two_threads() -> None:
    for x in inputs():
        assert torch.equal(torch.as_tensor(measure(x).tally), oracle(x))


@pytest.mark.usefixtures("two_threads")
def test_concurrent_threads() -> None:
    tensors = inputs()
    expected = [Spectrum.of(x) for x in tensors]
    right = [False] * 3

    def work(index: int) -> None:
        right[index] = all(all_equal(tensors, expected) for _ in range(3))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 3


@pytest.mark.usefixtures("two_threads")
def test_a_forked_child_measures_with_threads_of_its_own() -> None:
    """The parent has used the thread pool, and Torch's threads, which the child has not."""
    tensors = inputs()
    expected = [Spectrum.of(x) for x in tensors]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)  # rather than hang
        os._exit(0 if all_equal(tensors, expected) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert all_equal(tensors, expected)


@pytest.fixture
def flushed_denormals() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot switch denormals off")
    assert denormals.are_flushed()
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_with_denormals_off(dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    x = every_code(dtype) if dtype.itemsize <= 2 else edges(dtype)
    expected = oracle(x)
    request.getfixturevalue("flushed_denormals")
    check(x, expected)
    assert denormals.are_flushed()  # ours is not the place to switch them back on


# Backends


def test_which_backend_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    assert anywhere.backend_of(torch.device("cpu"), FP32) is tally_torch
    assert anywhere.backend_of(cuda, FP64) is tally_torch
    monkeypatch.setattr(anywhere, "find_spec", lambda name: None)
    assert anywhere.backend_of(cuda, FP32) is tally_torch
    monkeypatch.undo()
    pytest.importorskip("triton", reason="Triton is an optional extra, for CUDA")
    assert anywhere.backend_of(cuda, FP32).__name__ == "tally_triton"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_device_is_waited_for(dtype: torch.dtype) -> None:
    """On the meta device, where there are no values, asking for one is an error."""
    x = torch.empty(3 * anywhere.PIECE, dtype=dtype, device="meta")
    with pytest.raises(RuntimeError, match="meta"):
        x.float().sum().item()
    for part in (x, x[:0]):
        tally = tally_anywhere(part, layout_of(dtype))
        assert tally.is_meta
        assert tally.dtype == torch.int64
        assert tally.shape == (layout_of(dtype).size,)


# What has no spectrum


def refused(x: Any) -> str:
    with pytest.raises(FormatError) as caught:
        Spectrum.of(x)
    return str(caught.value)


@pytest.mark.parametrize(
    ("x", "cause"),
    [
        (torch.arange(3), "torch.int64"),
        (torch.zeros(3, dtype=torch.uint8), "torch.uint8"),
        (torch.tensor([True]), "torch.bool"),
        (torch.zeros(3, dtype=torch.complex64), "view_as_real"),
        (torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "float4_e2m1fn_x2"),
        (torch.zeros(3, device="meta"), "meta device"),
        (torch.eye(3).to_sparse(), "torch.sparse_coo"),
        (torch.eye(3).to_sparse_coo().coalesce().indices(), "torch.int64"),
        ([1.0, 2.0], "list"),
        (1.0, "float"),
        (None, "NoneType"),
        (np.float64(1), "float64"),
        (np.arange(3), "int64"),
        (np.zeros(3, np.complex64), "complex64"),
        (np.zeros(3, np.longdouble), str(np.dtype(np.longdouble))),
        (np.zeros(3, bool), "bool"),
    ],
)
def test_no_floating_point_tensor(x: Any, cause: str) -> None:
    assert cause in refused(x)


def test_no_memory_of_its_own() -> None:
    x = torch.randn(3, 4)
    messages = []

    def asks(part: Tensor) -> Tensor:
        messages.append(refused(part))
        return part.sum()

    torch.vmap(asks)(x)
    torch.func.grad(asks)(x)
    torch.func.functionalize(asks)(x)
    torch.fx.experimental.proxy_tensor.make_fx(asks)(x)
    assert len(messages) == 4
    assert all("memory" in m and "torch.func" in m for m in messages)


def test_freed_memory() -> None:
    x = torch.randn(3, 4)
    x.untyped_storage().resize_(0)
    assert "freed" in refused(x)
