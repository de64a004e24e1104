"""The lecture's character GPT: shape, data, training, and the cache that nothing spoils."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatscope.errors import TextError
from floatscope.lab.base_model import (
    ALPHABET,
    BASE_CONFIG,
    CharTokenizer,
    Training,
    bits_per_char,
    build_world,
    get_batch,
    load_or_train_base_model,
    lr_at,
    make_model,
    make_optimizer,
    train,
)
from floatscope.lab.base_model.cache import cache_path
from floatscope.lab.watch import unwatched

WORLD, TOK = build_world(), CharTokenizer(ALPHABET)
SHORT = Training(steps=3, batch_size=4)


@pytest.fixture(scope="module")
def data() -> Tensor:
    return torch.tensor(TOK.encode(WORLD.val_text()))


def test_shape() -> None:
    model = make_model()
    assert sum(p.numel() for p in model.parameters()) == 110_400
    assert (BASE_CONFIG.vocab_size, BASE_CONFIG.context) == (44, 96)
    assert not [name for name, _ in model.named_parameters() if "bias" in name]
    assert model(torch.zeros(2, 7, dtype=torch.long)).shape == (2, 7, 44)
    assert all((p == 1).all() for p in model.parameters() if p.ndim == 1)


def test_weights_depend_on_the_seed_alone() -> None:
    one, again, other = (make_model(seed=s).head.weight for s in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_no_character_sees_those_behind_it() -> None:
    model = make_model()
    ids = torch.arange(20)[None] % 44
    changed = ids.clone()
    changed[0, 12:] = 7
    assert torch.equal(model(ids)[0, :12], model(changed)[0, :12])
    assert not torch.equal(model(ids)[0, 12:], model(changed)[0, 12:])


def test_tokenizer() -> None:
    text = "6 * 7 = 42.\n"
    assert TOK.decode(TOK.encode(text)) == text
    assert TOK.encode(ALPHABET) == list(range(44))
    with pytest.raises(TextError, match="'é' is not one of the 44"):
        TOK.encode("é")


def test_batches(data: Tensor) -> None:
    x, y = get_batch(data, 5, 96, torch.Generator().manual_seed(0))
    assert x.shape == y.shape == (5, 96)
    assert torch.equal(x[:, 1:], y[:, :-1])
    again, _ = get_batch(data, 5, 96, torch.Generator().manual_seed(0))
    assert torch.equal(x, again)
    only, _ = get_batch(data[:97], 3, 96, torch.Generator())
    assert torch.equal(only, data[:96].expand(3, 96))
    with pytest.raises(TextError, match="do not fit into 96"):
        get_batch(data[:96], 1, 96, torch.Generator())


def test_learning_rate() -> None:
    assert lr_at(0, 300, 3e-3) == 3e-3
    assert lr_at(300, 300, 3e-3) == pytest.approx(3e-4)
    assert lr_at(150, 300, 3e-3) == pytest.approx(1.65e-3)


def test_bits_of_a_model_that_knows_nothing(data: Tensor) -> None:
    model = make_model()
    nn.init.zeros_(model.head.weight)
    assert bits_per_char(model, data[:5000]) == pytest.approx(math.log2(44))


def test_training_is_a_plain_loop(data: Tensor) -> None:
    """The same bits as Torch's own operations in the document's order."""
    model = make_model()
    for _ in train(model, make_optimizer(model, SHORT), data, SHORT):
        pass
    plain = make_model()
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=0.1, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(1)
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, 3, 3e-3)
        x, y = get_batch(data, 4, 96, generator)
        loss = F.cross_entropy(plain(x).view(-1, 44), y.view(-1))
        plain.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


# The cache


def made(notes: list[str]) -> tuple[bytes, float]:
    """What is in the cache file after a call, and the model's bits."""
    _, bits = load_or_train_base_model(
        WORLD, TOK, training=SHORT, watch=unwatched, note=notes.append
    )
    return cache_path(WORLD.train_text(), TOK, SHORT).read_bytes(), bits


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(tmp_path))
    made([])
    return cache_path(WORLD.train_text(), TOK, SHORT)


def test_second_time_it_is_loaded(cached: Path) -> None:
    notes: list[str] = []
    before, stamp = cached.read_bytes(), cached.stat().st_mtime_ns
    started = time.process_time()
    content, bits = made(notes)
    assert time.process_time() - started < 1
    assert (content, notes, cached.stat().st_mtime_ns) == (before, [], stamp)
    model, _ = load_or_train_base_model(WORLD, TOK, training=SHORT, watch=unwatched)
    data = torch.tensor(TOK.encode(WORLD.val_text()))
    assert bits_per_char(model, data) == bits


@pytest.mark.parametrize("fault", ["cut off", "damaged", "no safetensors", "foreign", "empty"])
def test_a_spoiled_file_is_said_and_made_again(cached: Path, fault: str) -> None:
    good = cached.read_bytes()
    foreign = cached.with_name("foreign.safetensors")
    if fault == "foreign":  # a whole file of another training
        other = Training(steps=2, batch_size=4)
        load_or_train_base_model(WORLD, TOK, training=other, watch=unwatched)
        shutil.move(cache_path(WORLD.train_text(), TOK, other), foreign)
    cached.write_bytes({
        "cut off": good[: len(good) // 2],
        "damaged": good[:-5] + bytes([good[-5] ^ 1]) + good[-4:],
        "no safetensors": b"hello" * 100,
        "foreign": foreign.read_bytes() if foreign.exists() else b"",
        "empty": b"",
    }[fault])  # fmt: skip
    notes: list[str] = []
    content, _ = made(notes)
    assert content == good
    assert len(notes) == 1
    assert str(cached) in notes[0]
    assert "made again" in notes[0]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("FLOATSCOPE_CACHE", str(blocked))
    notes: list[str] = []
    load_or_train_base_model(WORLD, TOK, training=SHORT, watch=unwatched, note=notes.append)
    assert len(notes) == 1
    assert "not kept" in notes[0]


def test_two_processes_at_once(tmp_path: Path) -> None:
    code = (
        "from floatscope.lab.base_model import *; "
        "m, bits = load_or_train_base_model(build_world(), CharTokenizer(), "
        "training=Training(steps=8, batch_size=4)); print(bits)"
    )
    environment = {**os.environ, "FLOATSCOPE_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    trained = sum("training the base model: 8 steps" in said for _, said in outputs)
    assert trained == 1
    assert len([*tmp_path.rglob("*.safetensors")]) == 1
    assert not [*tmp_path.rglob("*.tmp")]
