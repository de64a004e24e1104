"""Texts: the built-in world, files of the user's, tokens and their cache."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from floatscope.errors import TextError
from floatscope.lab.run.batches import training_batch, validation_batches
from floatscope.lab.text.corpus import Text, check_length, encode, load_tokens, read_text
from floatscope.lab.text.world import ALPHABET, build_world


def test_world_is_large_and_uses_its_alphabet_exactly() -> None:
    world = build_world()
    train, validation = world.train_text(), world.val_text()
    assert len(train) >= 1_000_000
    assert len(validation) >= 100_000
    assert len(ALPHABET) == len(set(ALPHABET)) == 44
    assert set(train) == set(validation) == set(ALPHABET)
    assert min(Counter(train).values()) >= 100
    assert min(Counter(validation).values()) >= 1
    assert validation[:500] not in train


def test_world_is_the_same_everywhere() -> None:
    world = build_world()
    digest = hashlib.sha256((world.train_text() + world.val_text()).encode()).hexdigest()
    assert digest == "ea2c2170b3d801746f3ca3cc9b6993e9a3f942d95d544c904e70d35c6e997342"


def test_world_tells_the_truth() -> None:
    """Sums, products and ages are right, and facts do not contradict each other."""
    homes: dict[str, str] = {}
    for line in build_world().val_text().splitlines():
        words = line.rstrip(".").split()
        if len(words) == 5 and words[1] in "+*":
            a, b, c = int(words[0]), int(words[2]), int(words[4])
            assert c == (a + b if words[1] == "+" else a * b), line
        if words[1:3] == ["lives", "in"]:
            assert homes.setdefault(words[0], words[3]) == words[3], line
    assert len(homes) > 50


def test_split_is_by_position(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(chr(0x4E00 + i) for i in range(1000)), encoding="utf-8")
    text = read_text(path)
    assert len(text.train) == 900
    assert text.validation[0] == chr(0x4E00 + 900)


def test_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert read_text(path).train.startswith("a")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "nothing but white space"),
        (b" \n\n", "nothing but white space"),
        ("三國".encode("gb18030"), "is not UTF-8: byte 0 cannot be decoded.*iconv"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(TextError, match=message) as error:
        read_text(path)
    assert str(path) in str(error.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="no such file"):
        read_text(tmp_path / "absent.txt")
    with pytest.raises(TextError, match="cannot be read"):
        read_text(tmp_path)


def a_text(validation: str = "a man, a plan. ") -> Text:
    return Text(name="t", train="the town of by. 12 + 3 = 15\n" * 200, validation=validation)


def test_tokens_are_cached_by_content_and_survive_damage() -> None:
    tokens, path = encode(a_text(), 300)
    assert tokens.train.dtype == np.uint16
    assert tokens.train.max() < 300
    stamp = path.stat().st_mtime_ns
    again, same = encode(a_text(), 300)
    assert same == path
    assert path.stat().st_mtime_ns == stamp
    assert again.sha256 == tokens.sha256
    path.write_bytes(path.read_bytes()[:-50])
    assert load_tokens(path) is None
    assert encode(a_text(), 300)[0].sha256 == tokens.sha256
    assert load_tokens(path) is not None


def test_the_tokenizer_sees_the_training_split_alone() -> None:
    one, _ = encode(a_text(), 300)
    two, _ = encode(a_text("一二三"), 300)
    assert np.array_equal(one.train, two.train)
    assert len(two.validation) == 9  # each character of the strange text is three bytes


def test_batches_depend_on_seed_and_step_alone() -> None:
    tokens = np.arange(1000, dtype=np.uint16)

    def draw(seed: int, step: int) -> list[int]:
        batch = training_batch(tokens, seed=seed, step=step, size=8, context=16)
        assert (batch.targets_BT == batch.inputs_BT + 1).all()
        return batch.inputs_BT[:, 0].tolist()

    assert draw(1, 5) == draw(1, 5)
    assert draw(1, 5) != draw(1, 6)
    assert draw(1, 5) != draw(2, 5)


def test_every_window_can_be_drawn_and_none_beyond_the_end() -> None:
    tokens = np.arange(20, dtype=np.uint16)
    starts = {
        start
        for step in range(200)
        for start in training_batch(
            tokens, seed=0, step=step, size=8, context=16
        ).inputs_BT[:, 0].tolist()
    }  # fmt: skip
    assert starts == {0, 1, 2, 3}


def test_validation_windows_are_even_and_do_not_overlap_where_they_can() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    batches = list(validation_batches(tokens, num_windows=10, size=4, context=16))
    assert [len(b.inputs_BT) for b in batches] == [4, 4, 2]
    starts = [s for b in batches for s in b.inputs_BT[:, 0].tolist()]
    assert starts[0] == 0
    assert starts[-1] == 1000 - 17
    assert min(b - a for a, b in itertools.pairwise(starts)) >= 16
    short = list(validation_batches(tokens[:40], num_windows=10, size=4, context=16))
    assert sum(len(b.inputs_BT) for b in short) == 2


def test_short_texts_are_refused() -> None:
    check_length("t", num_train=65, num_validation=17, batch=4, context=16)
    with pytest.raises(TextError, match="training part has 64 tokens.*needs 65"):
        check_length("t", num_train=64, num_validation=17, batch=4, context=16)
    with pytest.raises(TextError, match="validation part, the last tenth, has 16 tokens"):
        check_length("t", num_train=65, num_validation=16, batch=4, context=16)
