"""Rounding in forked workers, from several threads at once, and with denormals switched off."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from floatscope.rounding import block_round, denormals, encode_to, round_to, threads
from floatscope.rounding.openmp import run_on_team

SIZE = 3_000_000  # enough for several pieces, so that several threads take part


def numbers(seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 30, SIZE).astype(np.float32))


def everything(seed: int) -> list[Tensor]:
    """Results of every kernel on numbers that depend on the seed.

    No operation of Torch's own that would start its threads: those do not survive a fork.
    """
    x = numbers(seed)
    return [
        round_to(x, "e4m3fn"),
        round_to(x, "bf16", rounding="stochastic", key=seed),
        round_to(x, "e8m0fnu"),
        encode_to(x, "e5m2"),
        block_round(x, "mxfp8-e4m3").values,
        block_round(x[: 1 << 20].view(1024, 1024), "nvfp4", axis=-2).values,
    ]


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(np.array_equal(a.numpy(), b.numpy(), equal_nan=True) for a, b in pairs)


class Rounded(Dataset[list[Tensor]]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[Tensor]:
        return everything(index)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Filling what torch.empty returns, as deterministic mode does, would start Torch's threads.
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_forked_data_loader_workers() -> None:
    """The parent has used several threads, which its children do not have."""
    expected = [everything(index) for index in range(4)]
    loader = DataLoader(Rounded(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    for index, results in enumerate(loader):
        assert same(results, expected[index])
    assert same(everything(0), expected[0])


@pytest.mark.usefixtures("two_threads")
def test_a_forked_child_rounds_with_threads_of_its_own() -> None:
    expected = everything(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)  # rather than hang
        os._exit(0 if same(everything(5), expected) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.usefixtures("two_threads")
def test_concurrent_threads() -> None:
    expected = [everything(seed) for seed in range(3)]
    right = [False] * 3

    def work(seed: int) -> None:
        right[seed] = all(same(everything(seed), expected[seed]) for _ in range(3))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert right == [True] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="Torch brings GNU's OpenMP on Linux")
def test_the_threads_are_those_of_torch() -> None:
    seen: set[int] = set()
    both = threading.Barrier(2, timeout=30)

    def work() -> None:
        both.wait()
        seen.add(threading.get_native_id())

    for _ in range(3):
        assert run_on_team(work, 2)
    assert len(seen) == 2  # every time the same
    assert threading.get_native_id() in seen


@pytest.mark.usefixtures("two_threads")
def test_a_pool_where_there_is_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = everything(4)
    asked: list[int] = []
    monkeypatch.setattr(threads, "run_region", lambda *about: asked.append(about[-1]))
    assert same(everything(4), expected)
    assert set(asked) == {2}


THREADS_THAT_FLUSH = """
import torch
from floatscope.rounding import block_round, encode_to, round_to

torch.set_num_threads(2)
torch.set_flush_denormal(True)
torch.ones(1 << 22).add_(1.0)  # starts Torch's threads, which inherit that
torch.set_flush_denormal(False)
x = torch.arange(1, 1 + (1 << 23), dtype=torch.int32).view(torch.float32)  # all subnormal
for result in (
    lambda x: round_to(x, "bf16"),
    lambda x: round_to(x, "bf16", rounding="stochastic", key=1),
    lambda x: encode_to(x, "bf16").to(torch.int32),
    lambda x: block_round(x.view(-1, 32), "mxfp8-e4m3").values,
    lambda x: block_round(x.view(-1, 32), "nvfp4", axis=-2).values,
):
    torch.set_num_threads(1)
    expected = result(x)
    torch.set_num_threads(2)
    assert expected.any()
    assert torch.equal(result(x), expected)
"""


def test_threads_that_take_subnormals_for_zero_leave_the_job_to_others() -> None:
    command = [sys.executable, "-c", THREADS_THAT_FLUSH]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("team", [True, False])
@pytest.mark.usefixtures("two_threads")
def test_a_task_that_raises(team: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not team:
        monkeypatch.setattr(threads, "run_on_team", lambda *_: False)
    done: list[int] = []

    def task(start: int, stop: int, counts: threads.Counts) -> None:
        if start == 30:
            raise KeyboardInterrupt
        counts[0] += stop - start
        done.append(start)

    with pytest.raises(KeyboardInterrupt):
        threads.spread(task, 100, 1, piece=10)
    assert len(done) <= 9
    assert threads.spread(lambda a, b, counts: task(a + 31, b + 31, counts), 100, 1, 10) == 100


@pytest.fixture
def flushed_denormals() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot switch denormals off")
    assert denormals.are_flushed()
    yield
    torch.set_flush_denormal(False)
    assert not denormals.are_flushed()


def tiny() -> Tensor:
    """fp32 numbers around and below 2^-126, bit by bit."""
    bits = torch.cat(
        [torch.arange(0, 1 << 24, 977), torch.arange(200), (1 << 23) - torch.arange(200)]
    )
    return torch.cat([bits, bits + (1 << 31) - (1 << 32)]).to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("mode", ["nearest-even", "up", "to-odd", "stochastic"])
@pytest.mark.parametrize("name", ["bf16", "tf32", "e8m3fnuz", "e7m9", "fp16"])
def test_exact_with_denormals_off(name: str, mode: str, request: pytest.FixtureRequest) -> None:
    x = tiny()
    before = round_to(x, name, rounding=mode, key=1, dtype=torch.float64)  # type: ignore[arg-type]
    scaled = block_round(x.view(-1, 1)[: 32 * 1000].view(-1, 32), "mxfp8-e4m3")
    request.getfixturevalue("flushed_denormals")
    now = round_to(x, name, rounding=mode, key=1, dtype=torch.float64)  # type: ignore[arg-type]
    assert torch.equal(now.view(torch.int64), before.view(torch.int64))
    again = block_round(x.view(-1, 1)[: 32 * 1000].view(-1, 32), "mxfp8-e4m3")
    assert torch.equal(again.values.view(torch.int32), scaled.values.view(torch.int32))
    assert torch.equal(again.scales.view(torch.int32), scaled.scales.view(torch.int32))
    assert denormals.are_flushed()  # ours is not the place to switch them back on
