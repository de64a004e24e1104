"""From a UTF-8 file to token ids: split by position, train a tokenizer, encode, cache.

The first nine tenths of the characters train, the last tenth validates. The tokenizer is a
byte-level BPE trained on the training split alone, so the validation text cannot leak into it and
no character is unknown to it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from floatscope.errors import TextError
from floatscope.files import write_atomically
from floatscope.paths import cache_folder

TRAIN_SHARE = 0.9


@dataclass(frozen=True, kw_only=True)
class Text:
    """A training and a validation text."""

    name: str
    train: str
    validation: str


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """An encoded text."""

    train: NDArray[np.uint16]
    validation: NDArray[np.uint16]
    vocab_size: int
    """Ids are below this."""
    validation_chars_per_token: float
    """Turns nats a token into bits a character."""

    @property
    def sha256(self) -> str:
        """Of what a run trains on: arrays and vocabulary size, whatever the file's name."""
        digest = hashlib.sha256(f"{self.vocab_size}\0".encode())
        digest.update(self.train.tobytes() + b"\0" + self.validation.tobytes())
        return digest.hexdigest()


def read_text(path: Path) -> Text:
    """Read and split a UTF-8 text file.

    Raises:
        TextError: the file is missing, unreadable, not UTF-8, or empty.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise TextError(f"--text {path}: there is no such file.") from None
    except OSError as error:
        raise TextError(f"--text {path} cannot be read: {error.strerror}.") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(
            f"--text {path} is not UTF-8: byte {error.start} cannot be decoded. If it is text, "
            f"convert it first: iconv -f ENCODING -t UTF-8 {path.name} (Chinese is often GB18030 "
            "or BIG5)."
        ) from None
    if not text.strip():
        raise TextError(f"--text {path} holds nothing but white space.")
    cut = int(len(text) * TRAIN_SHARE)
    return Text(name=path.name, train=text[:cut], validation=text[cut:])


def encode(text: Text, vocab_size: int) -> tuple[Tokens, Path]:
    """Encode `text` with a tokenizer trained on its training split, or fetch it from the cache.

    The cache is keyed by the content of both splits and the vocabulary size; a damaged entry is
    made again.

    Args:
        text: what to encode.
        vocab_size: ids are below it; at least 256, one for each byte, and at most 65 536.

    Returns:
        The tokens, and the cache file from which `load_tokens` reads them again.
    """
    key = hashlib.sha256(
        b"byte-level bpe 1\0"
        + f"{vocab_size}\0".encode()
        + hashlib.sha256(text.train.encode()).digest()
        + hashlib.sha256(text.validation.encode()).digest()
    ).hexdigest()
    path = cache_folder() / "tokens" / f"{key[:32]}.npz"
    tokens = load_tokens(path)
    if tokens is None:
        tokens = _encode(text, vocab_size)
        write_atomically(path, lambda temporary: _save(temporary, tokens))
    return tokens, path


def check_length(name: str, num_train: int, num_validation: int, batch: int, context: int) -> None:
    """Refuse a text too short for one batch.

    Raises:
        TextError: fewer training tokens than a batch holds, or fewer validation tokens than one
            sequence and its targets need.
    """
    if num_train < batch * context + 1:
        raise TextError(
            f"the text {name} is too short: its training part has {num_train} tokens, and one "
            f"batch of {batch} x {context} needs {batch * context + 1}. Take a longer text "
            "or a smaller train.batch_size or model.context."
        )
    if num_validation < context + 1:
        raise TextError(
            f"the text {name} is too short: its validation part, the last tenth, has "
            f"{num_validation} tokens, and one sequence of {context} needs {context + 1}."
        )


def load_tokens(path: Path) -> Tokens | None:
    """The tokens in a cache file; None if it is absent, cut off or not ours."""
    try:
        # The archive carries a checksum of each array.
        with open(path, "rb") as file, np.load(file) as archive:
            return Tokens(
                train=archive["train"],
                validation=archive["validation"],
                vocab_size=int(archive["vocab_size"]),
                validation_chars_per_token=float(archive["validation_chars_per_token"]),
            )
    except Exception:  # whatever is wrong with it, it is made again
        return None


def _save(path: Path, tokens: Tokens) -> None:
    with open(path, "wb") as file:
        np.savez(
            file,
            train=tokens.train,
            validation=tokens.validation,
            vocab_size=np.array(tokens.vocab_size),
            validation_chars_per_token=np.array(tokens.validation_chars_per_token),
        )


def _encode(text: Text, vocab_size: int) -> Tokens:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(text.train.splitlines(keepends=True), trainer)

    def ids(part: str) -> NDArray[np.uint16]:
        lines = tokenizer.encode_batch(part.splitlines(keepends=True))
        return np.array([i for line in lines for i in line.ids], dtype=np.uint16)

    train, validation = ids(text.train), ids(text.validation)
    return Tokens(
        train=train,
        validation=validation,
        vocab_size=vocab_size,
        validation_chars_per_token=len(text.validation) / max(len(validation), 1),
    )
