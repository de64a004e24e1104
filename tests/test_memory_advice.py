"""Is a trace honest, and what would free memory: duplicates found, peaks replayed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import checkpoint

from floatscope.errors import LedgerError
from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.model import GPT, make_gpt
from floatscope.memory import Ledger, Measurement, Stage, Workload, measure
from floatscope.memory.advice import WhatIf, block_of, duplicate_casts, what_ifs
from floatscope.memory.honesty import Honesty, check
from floatscope.memory.trace import trace
from tests import tiny
from tests.memory_workloads import gpt, small_batch, tiny_gpt

MIB = 1 << 20


def changes(measurement: Measurement) -> dict[str, WhatIf]:
    return {one.change: one for one in what_ifs(measurement)}


# Honesty


class AsksWhetherItIsTraced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(8, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if isinstance(y, FakeTensor):
            y = y.exp()
        return self.out(y)


def mse(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def test_code_that_asks_whether_it_is_traced_is_found_out() -> None:
    found = check(Workload(model=AsksWhetherItIsTraced, batch=small_batch, loss_of=mse))
    assert not found.agrees
    assert found.worst > 0.1
    row, *_ = found.rows.where(operation="exp")
    assert (row.module, row.bytes) == ("", 4 * 64 * 4)
    first, *names = found.says()
    assert "NOT within 1 %" in first
    assert any("the model by exp, fp32: +1,024 bytes" in name for name in names)


def test_an_honest_trace_agrees() -> None:
    found = check(tiny_gpt("bf16-mixed", "materialized")[0])
    assert (found.agrees, found.worst, list(found.figures())) == (True, 0.0, [])
    assert found.says() == ["At a tiny shape, trace and meter agree to the byte in every stage."]


def test_a_difference_outside_of_stages_is_named_too() -> None:
    measured = measure(Workload(model=lambda: nn.Linear(8, 3), batch=small_batch, loss_of=mse))
    less = Measurement("trace", measured.stages, Ledger(), "native")
    found = Honesty(traced=less, measured=measured)
    assert found.agrees
    assert any("by linear, fp32: -128 bytes" in line for line in found.says())


def test_a_shape_that_is_not_tiny_is_not_run() -> None:
    job = Workload(
        model=lambda: nn.Linear(1 << 15, 1 << 15, bias=False),
        batch=lambda: torch.ones(1, 1 << 15),
        loss_of=lambda model, x: model(x).sum(),
    )
    with pytest.raises(LedgerError, match="is not tiny"):
        check(job)


# Casts made twice


def test_duplicate_casts_of_the_laboratorys_model() -> None:
    """q, k and v cast a norm's output three times, gate and up twice, and RoPE's tables twice."""
    traced = trace(gpt("bf16-mixed", GPTConfig(attention="materialized"), 32)[0])
    found = duplicate_casts(traced)
    stream, tables = 32 * 256 * 256 * 2, 256 * 16 * 2
    assert sum(one.bytes for one in found) == 48 * MIB + 8 * tables
    largest = found[0]
    assert (largest.module, largest.dtype) == ("blocks.0.attention_norm", "bf16")
    assert largest.consumers == tuple(f"blocks.0.attention.{name}" for name in "qkv")
    assert largest.bytes == 2 * stream
    replayed = changes(traced)
    assert replayed["share casts"].difference == -(48 * MIB + 8 * tables)
    # Measured with real checkpointing when the design was made: 833.87 to 287.46 MiB.
    assert abs(replayed["recompute every block"].difference / MIB + 546.4) < 0.1
    assert duplicate_casts(trace(tiny_gpt("fp32", "fused")[0])) == []


def test_a_source_that_changes_in_between_is_no_duplicate() -> None:
    class Changes(nn.Module):
        def __init__(self, by: float | None) -> None:
            super().__init__()
            self.one, self.two, self.by = nn.Linear(8, 3), nn.Linear(8, 3), by

        def forward(self, x: Tensor) -> Tensor:
            y = x.clone()
            z = self.one(y)
            if self.by is not None:
                y.mul_(self.by)
            return z + self.two(y)

    for by, expected in ((None, [4 * 8 * 2]), (2.0, [])):
        job = Workload(
            model=lambda by=by: Changes(by), batch=small_batch, loss_of=mse, recipe="bf16-mixed",
            backend="native",
        )  # fmt: skip
        assert [one.bytes for one in duplicate_casts(measure(job))] == expected


# Replays


class Checkpointed(GPT):
    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.embedding(ids_BT)
        for block in self.blocks:
            x_BTD = checkpoint(block, x_BTD, use_reentrant=False)
        return F.linear(self.norm(x_BTD), self.embedding.weight)


def test_replayed_recomputation_is_what_checkpointing_measures() -> None:
    config = GPTConfig(vocab_size=64, context=32, num_layers=6, width=32, num_heads=2, ff_width=96)
    plain = gpt("fp32", config, 4)[0]

    def recomputing() -> nn.Module:
        model = make_gpt(config, seed=1)
        model.__class__ = Checkpointed
        return model

    real = measure(
        Workload(model=recomputing, batch=lambda: tiny.batch(config, 4), loss_of=plain.loss_of)
    )
    replayed = changes(measure(plain))
    assert replayed["as it is"].peak > 1.5 * real.peak.peak.total
    assert replayed["recompute every block"].peak == pytest.approx(real.peak.peak.total, rel=0.05)


def test_a_caller_that_keeps_logits_pays_until_their_last_use_is_known() -> None:
    kept: list[Tensor] = []
    workload, numbers = tiny_gpt("fp32", "fused")

    def keeping(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch.inputs_BT)
        kept[:] = [logits.detach()]
        return F.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten())

    def job(loss_of: Any) -> Workload:
        return Workload(model=workload.model, batch=workload.batch, loss_of=loss_of)

    logits = 4 * numbers.tokens * numbers.vocab_size
    without = measure(job(workload.loss_of)).peak.peak.total
    replayed = changes(measure(job(keeping)))
    assert replayed["as it is"].peak == without + logits
    assert replayed["drop logits early"].peak == without


class Consumers(nn.Module):
    """Three layers read one norm's output; `shares` casts it once instead of three times."""

    def __init__(self, *, shares: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.layers = nn.ModuleList(nn.Linear(64, 8, bias=False) for _ in range(3))
        self.head, self.shares = nn.Linear(8, 512, bias=False), shares

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        y = y.bfloat16() if self.shares else y
        return self.head(self.layers[0](y) * self.layers[1](y) + self.layers[2](y))


def test_shared_casts_are_what_a_model_that_casts_once_measures() -> None:
    def job(shares: bool) -> Workload:
        return Workload(
            model=lambda: Consumers(shares=shares),
            batch=lambda: (torch.ones(256, 64), torch.ones(256, 512)),
            loss_of=mse,
            recipe="bf16-mixed",
            backend="native",
        )

    plain = measure(job(shares=False))
    (found,) = duplicate_casts(plain)
    assert found.bytes == 2 * 256 * 64 * 2
    assert found.consumers == ("layers.0", "layers.1", "layers.2")
    real = measure(job(shares=True))
    assert duplicate_casts(real) == []
    assert plain.saved.total - real.saved.total == found.bytes
    shared = changes(plain)["share casts"]
    assert shared.difference < 0
    assert shared.peak == real.peak.peak.total


def test_a_chunked_loss_is_about_what_real_chunks_measure() -> None:
    config = GPTConfig(vocab_size=512, context=32, num_layers=1, width=32, num_heads=2, ff_width=48)
    plain = gpt("fp32", config, 16)[0]

    def chunked(model: Any, batch: Any) -> Tensor:
        def part(x: Tensor, targets: Tensor) -> Tensor:
            logits = F.linear(x, model.embedding.weight)
            return F.cross_entropy(logits, targets, reduction="sum")

        x = model.embedding(batch.inputs_BT)
        for block in model.blocks:
            x = block(x)
        pieces = (t.chunk(8) for t in (model.norm(x).flatten(0, 1), batch.targets_BT.flatten()))
        losses = [
            checkpoint(part, *piece, use_reentrant=False) for piece in zip(*pieces, strict=True)
        ]
        return torch.stack(losses).sum() / batch.targets_BT.numel()  # type: ignore[arg-type]

    real = measure(Workload(model=plain.model, batch=plain.batch, loss_of=chunked))
    replayed = changes(measure(plain))
    assert replayed["as it is"].peak > 1.5 * real.peak.peak.total
    assert replayed["chunk the loss by 8"].peak == pytest.approx(real.peak.peak.total, rel=0.1)
    logits = 4 * 16 * 32 * 512
    assert -3 * logits <= replayed["chunk the loss by 8"].difference < 0


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(400, 400, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_a_fused_optimizer_is_what_torchs_own_measures() -> None:
    def job(fused: bool) -> Workload:
        return Workload(
            model=Wide,
            batch=lambda: torch.ones(1, 400),
            loss_of=lambda model, x: model(x).square().mean(),
            optimizer=lambda model: torch.optim.AdamW(
                model.parameters(), foreach=False if not fused else None, fused=fused
            ),
        )

    measured = measure(job(fused=False))
    replayed = changes(measured)
    assert replayed["as it is"].peak == measured.peak.peak.total
    assert replayed["as it is"].difference == 0
    assert replayed["as it is"].stage is Stage.OPTIMIZER
    fused = replayed["fuse the optimizer"]  # the peak moves
    real = measure(job(fused=True))
    assert (fused.stage, fused.peak) == (real.peak.stage, real.peak.peak.total)
    assert fused.stage is Stage.BACKWARD_2
    assert "fuse the optimizer" in changes(measure(tiny_gpt("fp32", "fused")[0]))


def test_a_record_has_nothing_to_replay() -> None:
    measured = measure(tiny_gpt("fp32", "fused")[0])
    read = Measurement.from_dict(measured.to_dict())
    assert read == measured
    with pytest.raises(LedgerError, match="no events to replay"):
        what_ifs(read)


def test_blocks_by_their_paths() -> None:
    paths = ["h.3.attn.q", "blocks.0", "model.layers.12.mlp", "norm", "a.1.b.2.c", "0", ""]
    found = [block_of(path) for path in paths]
    assert found == ["h.3", "blocks.0", "model.layers.12", None, "a.1", "0", None]
