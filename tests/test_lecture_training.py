"""Demonstrations 3 to 5 on a base model that has trained for a moment, and in full when asked for.

What training decides is asserted as the claims say (`lecture_claims.py`); `-m exhaustive` asserts
them of the real base model and of trainings of 300 steps.
"""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from floatscope.errors import LectureError
from floatscope.lab.base_model import (
    ALPHABET,
    CharGPT,
    CharTokenizer,
    Training,
    build_world,
    get_batch,
    load_or_train_base_model,
    make_model,
    make_optimizer,
    train,
)
from floatscope.lab.base_model.cache import cache_path
from floatscope.lab.lecture import fp16_grads, train_with_storage
from floatscope.lab.lecture.decay import decay
from floatscope.lab.lecture.demo3_gradients import flat, fp32_grads, gradients
from floatscope.lab.lecture.demo4_scaling import scaling
from floatscope.lab.lecture.demo5_master import ARMS, MORE, Arm, train_arm, unmoved
from floatscope.lab.lecture.follow import SecondMoment
from floatscope.lab.lecture.parallel import Request, trained_apart
from floatscope.lab.lecture.records import MasterWeights
from floatscope.lab.lecture.run import Lecture
from floatscope.recipes import recipe
from floatscope.recipes.backend import has_units
from floatscope.recipes.formats_of import Stored
from tests.lecture_claims import check_gradients, check_master_weights, check_scaling

WORLD, TOK = build_world(), CharTokenizer(ALPHABET)
VAL = torch.tensor(TOK.encode(WORLD.val_text()))[:10_000]


@pytest.fixture(scope="module")
def data() -> Tensor:
    return torch.tensor(TOK.encode(WORLD.train_text()))


@pytest.fixture(scope="module")
def base(data: Tensor) -> CharGPT:
    """Trained for a moment."""
    model, training = make_model(), Training(steps=30)
    for _ in train(model, make_optimizer(model, training), data, training):
        pass
    model.zero_grad()
    return model


@pytest.fixture
def _unchanged(base: CharGPT) -> Iterator[None]:
    """No demonstration changes the base model."""
    before = copy.deepcopy(base.state_dict())
    yield
    for name, tensor in base.state_dict().items():
        assert torch.equal(tensor, before[name]), name
        assert tensor.dtype is torch.float32
    assert all(p.grad is None for p in base.parameters())


@pytest.mark.usefixtures("_unchanged")
def test_gradients(base: CharGPT, data: Tensor) -> None:
    record = gradients(base, 1.0, data, batch_sizes=(32,))
    check_gradients(record)
    (batch,) = record.batches
    x, y = get_batch(data, 32, 96, torch.Generator().manual_seed(0))
    reference, loss = fp32_grads(base, x, y)
    assert batch.loss == loss
    assert batch.median == reference.abs().median().item()
    size = reference[reference != 0].abs()
    assert batch.to_zero.count == int((size.half() == 0).sum())
    assert batch.below_normal.count == int((size < 2.0**-14).sum())
    assert sum(count for _, count in batch.octaves) == batch.below_normal.of == len(size)
    row = batch.scales[-1]
    assert row.predicted_infinite.count == int((reference * 2.0**24).half().isinf().sum())
    real = fp16_grads(base, x, y, 2.0**24)
    assert (row.infinite.count, row.nan.count) == (int(real.isinf().sum()), int(real.isnan().sum()))


def native_fp16_grads(base: CharGPT, x: Tensor, y: Tensor, scale: float) -> Tensor:
    """As the document computes them, with Torch's own fp16 products."""
    model = copy.deepcopy(base).half()
    loss = F.cross_entropy(model(x).float().view(-1, 44), y.view(-1))
    (loss * scale).backward()
    return flat(model) / scale


@pytest.mark.usefixtures("_unchanged")
@pytest.mark.parametrize("exponent", [0, 8, 16])
def test_emulated_gradients_are_native_ones(base: CharGPT, data: Tensor, exponent: int) -> None:
    """Up to the order of accumulation: some sums in fp32 differ by an ulp, and few fp16 values.

    Without fp16 units Torch multiplies in loops that round sums on the way, to more than an ulp
    from the exact product. Their gradients err as much as ours, each in its own way.
    """
    x, y = get_batch(data, 8, 96, torch.Generator().manual_seed(0))
    ours, theirs = (f(base, x, y, 2.0**exponent) for f in (fp16_grads, native_fp16_grads))
    exact, _ = fp32_grads(base, x, y)
    apart = (ours - theirs).norm() / theirs.norm()
    error = (ours - exact).norm() / exact.norm()
    if not has_units("fp16", torch.device("cpu")):
        assert apart < error
        assert error.item() == pytest.approx(
            ((theirs - exact).norm() / exact.norm()).item(), rel=0.05
        )
        return
    assert apart < error / 20
    assert (ours == theirs).float().mean() > 0.5
    assert (ours - theirs).abs().median() == 0


@pytest.mark.usefixtures("_unchanged")
def test_scaling(base: CharGPT, data: Tensor) -> None:
    check_scaling(scaling(base, data))


# 5


@pytest.mark.usefixtures("_unchanged")
def test_unmoved_shares(base: CharGPT) -> None:
    found = unmoved(base, 3e-3, "bf16")
    gains = torch.cat([p.detach() for p in base.parameters() if p.ndim == 1])
    w = gains.bfloat16()
    stays = sum(
        int(((w.float() + u).bfloat16() == w).sum()) for u in (3e-3, -3e-3)
    )  # fmt: skip
    assert (found.gains.count, found.gains.of) == (stays, 2 * len(gains))
    assert found.matrices.of == 2 * (110_400 - 320)


def test_trainings_by_storage(data: Tensor) -> None:
    trainings = tuple(
        train_arm(data, VAL, arm, Training(steps=20, seed=seed)) for seed in (0, 1) for arm in ARMS
    )
    check_master_weights(
        MasterWeights(median_weight=0.0, unmoved=(), steps=20, trainings=trainings)
    )


def test_train_with_storage_is_the_documents(data: Tensor) -> None:
    """Weights rounded after each step, or a rounded copy of an fp32 master."""
    for storage, master in ((None, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        found = train_with_storage(data, VAL, storage, master, steps=4)
        form = "fp32" if storage is None else "bf16"
        stored = Stored(weights=form, master="fp32" if master else "")
        arm = train_arm(data, VAL, Arm(name="x", stored=stored), Training(steps=4))
        assert found == arm.bits == documents_bits(data, storage, master, steps=4)


def documents_bits(data: Tensor, storage: torch.dtype | None, master: bool, steps: int) -> float:
    from floatscope.lab.base_model import bits_per_char, lr_at

    model = make_model(seed=0)
    params = list(model.parameters())
    masters = [p.detach().clone() for p in params]
    trained = masters if master else params
    optimizer = torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.1, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(1)

    def rounded(t: Tensor) -> Tensor:
        return t if storage is None else t.to(storage).float()

    with torch.no_grad():
        for p in params:
            p.copy_(rounded(p))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, steps, 3e-3)
        x, y = get_batch(data, 32, 96, generator)
        loss = F.cross_entropy(model(x).view(-1, 44), y.view(-1))
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        if master:
            for p, m in zip(params, masters, strict=True):
                m.grad = p.grad
        optimizer.step()
        with torch.no_grad():
            for p, m in zip(params, masters, strict=True):
                p.copy_(rounded(m if master else p))
    return bits_per_char(model, VAL)


def test_second_moment_beside_fp32(data: Tensor) -> None:
    """Stored in fp32 the two are one; in bf16 what the step leaves unchanged is counted."""
    training = Training(steps=3)
    for moments, same in ((("fp32", "fp32"), True), (("fp32", "bf16"), False)):
        model = make_model()
        optimizer = make_optimizer(model, training)
        second = SecondMoment(optimizer, training.beta2)
        how = replace(recipe("fp32"), name="x", stored=Stored(moments=moments))
        for _ in train(model, optimizer, data, training, how):
            second.after()
        at = second.at(3)
        assert (at.ratio == (1.0, 1.0, 1.0)) is same
        assert at.ratio[0] <= at.ratio[1] <= at.ratio[2]
        assert at.ratio[1] == pytest.approx(1, abs=2e-3)
        assert 0 < at.unchanged.of <= 110_400


def test_decay() -> None:
    found = {(d.format, d.beta2): d for d in decay()}
    frozen = found["bf16", 0.999]
    assert (frozen.smallest, frozen.largest, frozen.steps) == (1.0, 1.0, 3000)
    assert found["fp32", 0.999].largest == pytest.approx(0.999**3000, rel=1e-4)
    assert found["bf16", 0.95].largest < 1e-38
    v = torch.tensor(1.5)
    for _ in range(3000):
        v = (v * 0.999).bfloat16().float()
    assert v == 1.5


# In processes of their own


def test_trainings_apart_are_those_in_this_process(data: Tensor) -> None:
    val = torch.tensor(TOK.encode(WORLD.val_text()))
    arms = (ARMS[0], ARMS[1], MORE[-1])
    requests = [Request(arm=a.name, beta2=a.beta2, seed=1, steps=2) for a in arms]
    found = trained_apart(requests)
    here = [train_arm(data, val, arm, Training(steps=2, seed=1)) for arm in arms]
    assert list(found) == here


def test_a_training_that_fails_is_an_error() -> None:
    with pytest.raises(LectureError, match="a training stopped: StopIteration"):
        trained_apart([Request(arm="no such arm", beta2=0.95, seed=0, steps=1)])


WATCHED = """
import signal
from contextlib import nullcontext
from floatscope.lab.lecture.parallel import Request, trained_apart

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in background
requests = [Request(arm="fp32", beta2=0.95, seed=0, steps=3000)] * 2
trained_apart(requests, lambda _what, _total: nullcontext(lambda n: print("step", flush=True)))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_caller(how: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as caller:
        try:
            assert caller.stdout is not None
            assert caller.stdout.readline() == b"step\n"
            workers = children(caller.pid)
            assert workers
            os.kill(caller.pid, how)
            caller.wait(timeout=60)
        finally:
            caller.kill()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(map(alive, workers)):
        time.sleep(0.1)
    assert not any(map(alive, workers))


def children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def alive(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


# In full


@pytest.mark.exhaustive
def test_the_lecture_in_full() -> None:
    """Trains the base model (minutes) and the twelve models of demonstration 5."""
    lecture = Lecture()
    _, bits = load_or_train_base_model(WORLD, TOK)
    assert bits < 0.70
    path = cache_path(WORLD.train_text(), TOK)
    before = path.read_bytes()
    check_gradients(lecture.demonstration(3))
    check_scaling(lecture.demonstration(4))
    check_master_weights(lecture.demonstration(5))
    assert path.read_bytes() == before
