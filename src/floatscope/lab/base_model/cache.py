"""The base model: trained once, then loaded from the user's cache folder.

The file's name is a hash of configuration, training and text; its content carries a checksum. What
is damaged, cut off or of another origin is said and made again. Of two processes that need it at
once, one trains and the other waits; where a lock cannot be had both train, and each file that
appears is whole.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from floatscope.files import DiskError
from floatscope.lab.base_model.config import BASE_CONFIG, BASE_TRAINING, Training
from floatscope.lab.base_model.data import CharTokenizer
from floatscope.lab.base_model.model import CharGPT, make_model
from floatscope.lab.base_model.training import (
    bits_per_char,
    make_optimizer,
    single_threaded,
    train,
)
from floatscope.lab.run.checkpoint import digest, opened, save_weights
from floatscope.lab.text.world import World
from floatscope.lab.watch import Watch, lines_on_stderr, note_on_stderr
from floatscope.paths import cache_folder

ABOUT = "base_model"
"""Key of the file's metadata; one, since the order of several is not fixed."""
VERSION = 1
"""Of model and training code: a change of either that changes weights counts it up."""


def load_or_train_base_model(
    world: World,
    tok: CharTokenizer,
    *,
    training: Training = BASE_TRAINING,
    watch: Watch = lines_on_stderr,
    note: Callable[[str], None] = note_on_stderr,
) -> tuple[CharGPT, float]:
    """The base model, from the cache, or trained and put there.

    Args:
        world: whose text it learns.
        tok: numbers the characters of that text.
        training: how it is trained.
        watch: shows how far training is.
        note: told what was wrong with a cached file, and what is done about it.

    Returns:
        The model, and its bits a character on the world's validation text.
    """
    train_text = world.train_text()
    path = cache_path(train_text, tok, training)
    found = _load(path, note)
    if found is not None:
        return found
    with _alone(path, note):
        found = _load(path, lambda _: None)  # whoever held the lock may have made it
        if found is None:
            data, val = (torch.tensor(tok.encode(t)) for t in (train_text, world.val_text()))
            found = _trained(data, val, training, watch)
            _save(path, *found, note)
    return found


def cache_path(train_text: str, tok: CharTokenizer, training: Training = BASE_TRAINING) -> Path:
    """Where the base model is kept."""
    text = hashlib.sha256(train_text.encode()).hexdigest()
    parts = [VERSION, asdict(BASE_CONFIG), asdict(training), tok.alphabet, text]
    identity = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    return cache_folder() / "base_model" / f"{identity}.safetensors"


def _trained(data: Tensor, val: Tensor, training: Training, watch: Watch) -> tuple[CharGPT, float]:
    model = make_model(BASE_CONFIG, training.seed)
    steps = train(model, make_optimizer(model, training), data, training)
    with single_threaded(), watch("training the base model", training.steps) as done:
        for number, _ in enumerate(steps, start=1):
            done(number)
        model.zero_grad()
        return model, bits_per_char(model, val)


def _save(path: Path, model: CharGPT, bits: float, note: Callable[[str], None]) -> None:
    checksum = digest(dict(model.named_parameters()))
    about = json.dumps({"identity": path.stem, "bits": bits, "sha256": checksum})
    try:
        save_weights(path, model, {ABOUT: about})
    except DiskError as error:
        note(f"the base model is not kept for the next time: {error}")


def _load(path: Path, note: Callable[[str], None]) -> tuple[CharGPT, float] | None:
    """What is in the cache; None, and a note unless there is no file, if it cannot be used."""
    if not path.exists():
        return None
    try:
        tensors, metadata = opened(path)
        about = json.loads(metadata.get(ABOUT, "{}"))
        if about.get("identity") != path.stem:
            raise ValueError("it is another file than its name says")
        if about["sha256"] != digest(tensors):
            raise ValueError("its checksum does not match")
        model = make_model(BASE_CONFIG)
        model.load_state_dict(tensors)
        return model, float(about["bits"])
    except (SafetensorError, OSError, RuntimeError, KeyError, ValueError) as error:
        reason = str(error).splitlines()[0]
        note(f"the cached base model {path} cannot be used ({reason}); it is made again.")
        return None


@contextmanager
def _alone(path: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a cache file, waiting for another process that does."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = open(path.with_suffix(".lock"), "w")  # noqa: SIM115, closed below
    except OSError:  # a folder that cannot be written; the note comes with saving
        yield
        return
    with lock:
        _wait_for(lock.fileno(), note)
        yield


def _wait_for(descriptor: int, note: Callable[[str], None]) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    with suppress(OSError):  # file systems without locks
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note("another process is training the base model; waiting for it.")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
