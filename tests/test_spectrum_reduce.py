"""Spectra added up over real processes: exactly, and with errors that all of them see."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

from floatscope.errors import SpectrumError
from floatscope.spectrum import reduce
from floatscope.spectrum.spectrum import Spectrum

NUM_RANKS = 3
MEMBERS = (1, 2)
"""Ranks of a second, smaller group."""
GROUPS = {"all": (0, 1, 2), "two": MEMBERS}
DAMAGED_RANK = 1


def noise(size: int, exponent: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator) * 2.0**exponent


def tensors() -> dict[str, list[Tensor]]:
    """What each rank holds, by case."""
    ranks = range(NUM_RANKS)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 1e-40, 3.0])
    return {
        "the same octaves": [noise(1000, 0, rank) for rank in ranks],
        "octaves apart": [noise(100 + rank, 60 * rank - 90, rank) for rank in ranks],
        "one is empty": [noise(500 * (rank != 1), 3, rank) for rank in ranks],
        "only the last has elements": [noise(5 * (rank == 2), 3, 1) for rank in ranks],
        "all are empty": [torch.empty(0) for _ in ranks],
        "nothing finite": [torch.full((rank + 1,), math.inf) for rank in ranks],
        "of all kinds": [special[: 8 - rank] for rank in ranks],
        "powers of two": [torch.exp2(torch.arange(5.0) * rank - 3) for rank in ranks],
        "narrow": [noise(99, 2, rank).to(torch.float8_e5m2) for rank in ranks],
    }


def large(doublings: int) -> Spectrum:
    spectrum = Spectrum.of(noise(10_000, 5, 7))
    for _ in range(doublings):
        spectrum += spectrum
    return spectrum


def damaged(spectrum: Spectrum) -> Spectrum:
    return replace(spectrum, nans=-1)


def work(rank: int, folder: Path) -> None:
    """One rank: adds up case by case in both groups, and writes what comes of it."""
    torch.set_num_threads(1)
    init = f"file://{folder}/init"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=NUM_RANKS)
    groups = {"all": None, "two": dist.new_group([*MEMBERS])}
    calls = []
    collective = dist.all_reduce

    def counted(tensor: Tensor, *args: Any) -> Any:
        calls.append(tensor.numel())
        return collective(tensor, *args)

    dist.all_reduce = counted  # type: ignore[assignment]
    results = {}
    for name, texts in json.loads((folder / "spectra.json").read_text()).items():
        own = Spectrum.from_json(texts[rank])
        own = damaged(own) if name == "damaged" and rank == DAMAGED_RANK else own
        for called, group in groups.items():
            calls.clear()
            try:
                result = own.all_reduce(group).to_json()
            except SpectrumError as error:
                result = str(error)
            results[f"{name}, {called}"] = [result, len(calls)]
    (folder / f"rank{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def run(folder: Path, cases: dict[str, list[Spectrum]]) -> list[dict[str, tuple[str, int]]]:
    """The results of each rank: what it got, and the collective calls for it."""
    texts = {name: [spectrum.to_json() for spectrum in held] for name, held in cases.items()}
    (folder / "spectra.json").write_text(json.dumps(texts))
    torch.multiprocessing.spawn(work, (folder,), nprocs=NUM_RANKS)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(NUM_RANKS)]


def test_two_and_three_processes(tmp_path: Path) -> None:
    held = tensors()
    cases = {name: [Spectrum.of(x) for x in xs] for name, xs in held.items()}
    fp64 = Spectrum.of(noise(300, 0, 1).double() / 3)
    cases["squares beyond int64"] = [large(45 + rank) for rank in range(NUM_RANKS)]
    cases["thousands of octaves"] = [fp64.scaled(5000 * rank) for rank in range(NUM_RANKS)]
    cases["finest unknown"] = [replace(fp64, finest=None if r != 1 else 5) for r in range(3)]
    cases["no finest known"] = [replace(fp64, finest=None) for _ in range(NUM_RANKS)]
    fine = [*cases]
    cases["too many"] = [large(48) + large(48) for _ in range(NUM_RANKS)]
    cases["too wide"] = [fp64.scaled(70_000 * rank) for rank in range(NUM_RANKS)]
    cases["damaged"] = cases["the same octaves"]

    results = run(tmp_path, cases)
    for called, ranks in GROUPS.items():
        for name in fine:
            wanted = Spectrum.sum(cases[name][rank] for rank in ranks)
            if name in held:
                assert wanted == Spectrum.of(torch.cat([held[name][rank] for rank in ranks]))
            for rank in ranks:
                text, num_calls = results[rank][f"{name}, {called}"]
                got = Spectrum.from_json(text)
                assert got == wanted, (name, called, rank)
                assert got.fraction_bits == wanted.fraction_bits
                assert got.finest == wanted.finest
                assert num_calls == 2
        for rank in ranks:
            assert "too many to count" in results[rank][f"too many, {called}"][0]
            assert "cannot be added up at once" in results[rank][f"too wide, {called}"][0]
            is_own = rank == DAMAGED_RANK
            message = "a count is negative" if is_own else "of another rank is damaged"
            assert message in results[rank][f"damaged, {called}"][0]
    assert max(large(47).squares.values()) > 2**84
    for name in cases:
        text, num_calls = results[0][f"{name}, two"]
        assert ("is not in that group" in text, num_calls) == (True, 0)


def test_without_torch_distributed() -> None:
    with pytest.raises(SpectrumError, match="not initialized.*init_process_group"):
        Spectrum.empty().all_reduce()


@pytest.mark.parametrize(
    ("config", "device"),
    [("cpu:gloo,cuda:gloo", "cpu"), ("cuda:nccl", "cuda"), ("cuda:nccl,cpu:gloo", "cpu")],
)
def test_tensors_live_where_the_backend_works(
    config: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be chosen with NCCL, without a GPU."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 4)
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    assert reduce._device_and_size(None) == (torch.device(device), 4)
