"""Training under a capture gives the same bits as training without."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import floatscope as fs
from floatscope.lab.model import GPT, make_gpt
from floatscope.lab.run.train import batch_loss, make_optimizer
from tests import tiny


def bits(model: nn.Module) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in model.parameters()]


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("name", ["fp32", "fp16-mixed", "bf16-mixed"])
def test_recipes_train_to_the_same_bits(name: str, every: int) -> None:
    results = []
    for captured in (False, True):
        model = make_gpt(tiny.MODEL, seed=1)
        optimizer = make_optimizer(model, tiny.TRAIN)
        step = fs.TrainStep(model, optimizer, name, clip_norm=1.0, backend="emulated")
        context: Any = nullcontext()
        if captured:
            context = fs.capture(model, optimizer=optimizer, loss_scale=step, every=every)
        with context:
            outcomes = [
                step(lambda m, k=k: batch_loss(m, tiny.batch(seed=k))) for k in range(3)
            ]  # fmt: skip
        results.append((outcomes, bits(model)))
    assert results[0] == results[1]


def test_native_autocast_trains_to_the_same_bits() -> None:
    results = []
    for captured in (False, True):
        model = make_gpt(tiny.MODEL, seed=1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with fs.capture(model, optimizer=optimizer) if captured else nullcontext() as seen:
            losses = []
            for k in range(3):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = batch_loss(model, tiny.batch(seed=k))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        results.append((losses, bits(model)))
        if seen:
            widths = {r.spectrum.fraction_bits for r in seen.select(role="activation")}
            assert widths == {7, 23}  # products are bf16, norms fp32
    assert results[0] == results[1]


class Harder(nn.Module):
    """Dropout, in-place changes, views, batch statistics and recomputed blocks."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.ReLU(inplace=True))
        self.flat, self.head = nn.Flatten(), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2)
        x = checkpoint(self.block, x, use_reentrant=self.use_reentrant)  # type: ignore[assignment]
        return self.head(F.relu_(self.flat(x)))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_harder_model_trains_to_the_same_bits(use_reentrant: bool) -> None:
    results = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = Harder(use_reentrant)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with fs.capture(model, optimizer=optimizer) if captured else nullcontext():
            for _ in range(3):
                optimizer.zero_grad(set_to_none=False)
                for _ in range(2):
                    model(torch.randn(2, 3, 6, 6)).square().sum().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        results.append((bits(model), torch.rand(1).item()))
    assert results[0] == results[1]


def test_the_graph_that_autograd_saves_is_the_same() -> None:
    """To the byte: what a capture looks at it does not keep."""
    saved: dict[bool, list[tuple[int, ...]]] = {}
    for captured in (False, True):
        model: GPT = make_gpt(tiny.MODEL, seed=1)
        sizes = saved.setdefault(captured, [])

        def pack(x: torch.Tensor, sizes: list[tuple[int, ...]] = sizes) -> torch.Tensor:
            sizes.append((*x.shape, x.element_size()))
            return x

        context: Any = fs.capture(model) if captured else nullcontext()
        with context, torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            batch_loss(model, tiny.batch()).backward()
    assert saved[False] == saved[True]
    assert len(saved[True]) > 50
