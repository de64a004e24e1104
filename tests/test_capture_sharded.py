"""Sharded and replicated models, on two processes: each captures its own part."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import floatscope as fs
from floatscope.spectrum.capture.weights import EMPTY

WORLD = 2


class Net(nn.Module):
    """Sizes that two processes cannot share evenly, and one that leaves nothing for the second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.block = nn.Linear(6, 5), nn.Sequential(nn.Linear(5, 7), nn.ReLU())
        self.last = nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x)))


NAMES = ["first.weight", "first.bias", "block.0.weight", "block.0.bias", "last.weight", "last.bias"]
PATHS = ["first", "block.0", "block.1", "block", "last", ""]


def sharded() -> nn.Module:
    model, mesh = Net(), init_device_mesh("cpu", (WORLD,))
    fully_shard(model.block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sharded_as_before() -> nn.Module:
    model, device = Net(), torch.device("cpu")
    model.block = FullyShardedDataParallel(model.block, use_orig_params=True, device_id=device)  # type: ignore[assignment]
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=device)


def replicated() -> nn.Module:
    return DistributedDataParallel(Net())


def own(x: Any) -> Tensor:
    """A copy of the part that this process holds; empty if there is none."""
    if x is None:
        return torch.empty(0)
    return (x.to_local() if hasattr(x, "to_local") else x).detach().clone()


def train(make: Callable[[], nn.Module], captured: bool) -> tuple[Any, list[dict[str, Any]]]:
    """Three steps of two passes, on data of this process, with what each step really held."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    truth = []
    context: Any = nullcontext()
    if captured:
        context = fs.capture(model, optimizer=optimizer, loss_scale=4.0)
    with context as seen:
        for _ in range(3):
            optimizer.zero_grad()
            before = [own(p) for p in model.parameters()]
            for _ in range(2):
                x = torch.randn(3, 6, generator=generator)
                (model(x).square().sum() * 4).backward()
            gradients = [own(p.grad) for p in model.parameters()]
            optimizer.step()
            after = [own(p) for p in model.parameters()]
            truth.append({"weight": before, "weight_gradient": gradients, "after": after})
    return seen, truth


def spectra(seen: Any, role: str, step: int) -> dict[str, fs.Spectrum]:
    records = seen.select(role=role, step=step)
    return {f"{r.module}.{r.name}".removeprefix("module."): r.spectrum for r in records}


def check(make: Callable[[], nn.Module]) -> None:
    _, plain = train(make, captured=False)
    seen, truth = train(make, captured=True)
    for step, (held, without) in enumerate(zip(truth, plain, strict=True)):
        for kind, tensors in held.items():
            for got, expected in zip(tensors, without[kind], strict=True):
                assert torch.equal(got, expected), (step, kind)
        expected = {
            "weight": [fs.Spectrum.of(x) for x in held["weight"]],
            "weight_gradient": [fs.Spectrum.of(x).scaled(-2) for x in held["weight_gradient"]],
            "update": [
                fs.Spectrum.of(a.double() - b.double())
                for a, b in zip(held["after"], held["weight"], strict=True)
            ],
        }
        for role, wanted in expected.items():
            got = {name: fs.Spectrum.empty() for name in NAMES} | spectra(seen, role, step)
            assert got == dict(zip(NAMES, wanted, strict=True)), (step, role)
        for role in ("activation", "activation_gradient"):
            records = seen.select(role=role, step=step)
            paths = {r.module.removeprefix("module").removeprefix(".") for r in records}
            assert paths == {*PATHS}, (role, paths)
            assert {r.calls for r in records} == {2}
    unseen = {f"{u.module}.{u.name}": u.reason for u in seen.unseen}
    sizes = {n: x.numel() for n, x in zip(NAMES, truth[0]["weight"], strict=True)}
    empty = [name for name, size in sizes.items() if not size and make is sharded_as_before]
    assert unseen == dict.fromkeys(empty, EMPTY)


def check_that_gradients_are_averaged() -> None:
    """What a replica captures is the mean over processes, not its own part of it."""
    torch.manual_seed(0)
    layer = nn.Linear(2, 1, bias=False)
    alone, model = copy.deepcopy(layer), DistributedDataParallel(layer)
    x = torch.full((1, 2), float(2 ** dist.get_rank()))
    with fs.capture(model, roles="weight_gradient") as seen:
        model(x).sum().backward()
    alone(x).sum().backward()
    assert seen.total() == fs.Spectrum.of(torch.full((1, 2), 1.5))
    assert seen.total() != fs.Spectrum.of(alone.weight.grad)


def work(rank: int, folder: str) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    try:
        for make in (sharded, sharded_as_before, replicated):
            check(make)
        check_that_gradients_are_averaged()
        dist.barrier()  # nobody leaves while the other still listens
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    mp.spawn(work, (str(tmp_path),), nprocs=WORLD)  # raises what a process raised
