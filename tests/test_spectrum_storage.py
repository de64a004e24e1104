"""Stored spectra: nothing lost, few bytes, readable by others, and damage always noticed."""

from __future__ import annotations

import base64
import errno
import json
import math
import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from floatscope import files
from floatscope.errors import FloatscopeError, SpectrumError
from floatscope.files import DiskError
from floatscope.spectrum import storage
from floatscope.spectrum.cells import STRIDE
from floatscope.spectrum.spectrum import COUNTED, Spectrum
from floatscope.tables import TableError
from floatscope.tables import read_parquet as read_table
from floatscope.tables import write_parquet as write_table

DTYPES = {
    torch.float64: np.int64, torch.float32: np.int32, torch.float16: np.int16,
    torch.bfloat16: np.int16, torch.float8_e4m3fn: np.int8, torch.float8_e5m2: np.int8,
    torch.float8_e4m3fnuz: np.int8, torch.float8_e5m2fnuz: np.int8,
}  # fmt: skip


@st.composite
def measured(draw: st.DrawFn) -> Spectrum:
    """The spectrum of a tensor of any dtype: of any bits, or of noise in a few octaves."""
    dtype = draw(st.sampled_from([*DTYPES]))
    seed = draw(st.integers(0, 2**32 - 1))
    size = draw(st.integers(0, 3000) | st.integers(0, 5))
    rng = np.random.default_rng(seed)
    if draw(st.booleans()):
        info = np.iinfo(DTYPES[dtype])
        bits = rng.integers(info.min, info.max, size, DTYPES[dtype], endpoint=True)
        return Spectrum.of(torch.from_numpy(bits).view(dtype))
    spread = draw(st.sampled_from([0.0, 1.0, 8.0]))
    noise = rng.normal(size=size) * np.exp2(spread * rng.normal(size=size))
    return Spectrum.of(torch.from_numpy(noise).to(dtype))


@st.composite
def spectra(draw: st.DrawFn) -> Spectrum:
    """Sums of up to three, each scaled, and counted up to 2^49 times; finest may be unknown."""
    parts = draw(st.lists(st.tuples(measured(), st.integers(-3000, 3000)), max_size=3))
    total = Spectrum.sum(part.scaled(exponent) for part, exponent in parts)
    for _ in range(draw(st.integers(0, 49))):
        total += total
    return replace(total, finest=None) if draw(st.booleans()) else total


def assert_same(got: Spectrum, wanted: Spectrum) -> None:
    assert got == wanted
    for field in fields(Spectrum):
        assert np.array_equal(getattr(got, field.name), getattr(wanted, field.name)), field.name
    assert got.keys.dtype == np.int32
    assert got.counts.dtype == np.int64
    assert got.amax.hex() == wanted.amax.hex()
    assert all(type(n) is int for n in (*got.squares, *got.squares.values(), got.zeros))


def lognormal(size: int, deviation: float, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randn(size, generator=generator) * deviation - 20
    sign = torch.randint(0, 2, (size,), generator=generator) * 2 - 1
    return (torch.exp2(exponents) * sign).to(dtype)


def normal(size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


SAMPLE = Spectrum.of(
    torch.cat([lognormal(5000, 3.0), torch.tensor([0.0, -0.0, math.inf, math.nan])])
)


# Round trips


@given(spectra())
@settings(max_examples=60)
def test_json_gives_back_the_same_spectrum(spectrum: Spectrum) -> None:
    text = spectrum.to_json()
    assert text.isascii()
    assert " " not in text
    assert_same(Spectrum.from_json(text), spectrum)
    assert json.loads(text) == spectrum.to_dict()
    assert_same(Spectrum.from_dict(spectrum.to_dict()), spectrum)


def test_all_bit_patterns_of_fp32() -> None:
    spectrum = all_of_fp32()
    text = spectrum.to_json()
    assert_same(Spectrum.from_json(text), spectrum)
    assert len(text) <= 18_200


def test_square_sums_beyond_int64() -> None:
    spectrum = Spectrum.of(normal(10_000))
    for _ in range(49):
        spectrum += spectrum
    assert max(spectrum.squares.values()) > 2**85
    assert_same(Spectrum.from_json(spectrum.to_json()), spectrum)
    with pytest.raises(SpectrumError, match="negative or too large"):
        (spectrum + spectrum).to_json()


@pytest.mark.parametrize("values", [[], [0.0, -0.0], [math.inf, -math.inf, math.nan, math.nan]])
def test_without_finite_nonzero_elements(values: list[float]) -> None:
    spectrum = Spectrum.of(torch.tensor(values))
    assert spectrum.to_dict()["octaves"] == []
    assert_same(Spectrum.from_json(spectrum.to_json()), spectrum)


def test_a_dictionary_reads_well() -> None:
    data = Spectrum.of(torch.tensor([1.0, 1.5, -6.0, 0.0, -0.0, 2**-130, math.inf])).to_dict()
    octaves = data.pop("octaves")
    assert octaves == [1] + [0] * 129 + [2, 0, 1]
    assert isinstance(data.pop("classes"), str)
    assert data == {
        "schema": 1, "positive_zeros": 1, "negative_zeros": 1, "positive_infinities": 1,
        "negative_infinities": 0, "nans": 0, "subnormals": 1, "amax": "0x1.8000000000000p+2",
        "fraction_bits": 23, "finest": -149, "lowest_octave": -130,
    }  # fmt: skip


# A reader of its own, written after the docstrings of `storage` and `class_code` alone


class Bits:
    def __init__(self, data: bytes) -> None:
        self.bits = iter([byte >> (7 - i) & 1 for byte in data for i in range(8)])

    def difference(self, k: int) -> int:
        zeros = 0
        while next(self.bits) == 0:
            zeros += 1
        value = 1
        for _ in range(zeros + k):  # b - 1 digits after the first
            value = 2 * value + next(self.bits)
        value -= 2**k
        return value // 2 if value % 2 == 0 else -(value + 1) // 2

    def count(self, expected: int, most: int) -> int:
        expected = min(max(expected, 0), most)
        return expected + self.difference(min(expected, most - expected).bit_length() // 2)


def read_octave(bits: Bits, n: int, p: int) -> tuple[dict[int, int], int]:
    counts: dict[int, int] = {}
    weighted = ones = drift = 0
    rest = n
    while rest > 0:
        half = (rest + 1) // 2
        pair = bits.count(rest if ones >= p else half + drift, rest)
        drift = (pair - half) // 4
        lower = point = 0
        if pair > 0:
            even = (pair + 1) // 2 + drift + pair // 2 ** max(p - ones - 1, 0)
            lower = bits.count(pair if ones >= p else even, pair)
        if ones == 0 and lower > 0:
            point = bits.count(lower // 2 ** max(p - 2, 0), lower)
        a, b = 2**14 - 2**13 // 2**ones, 2**14 - 3 * 2**11 // 2**ones
        c = 2**14 - 2**13 // 2 ** (ones + 1)
        weighted += point * 2**26 + (lower - point) * ((a * a + a * b + b * b) // 3)
        weighted += (pair - lower) * ((b * b + b * c + c * c) // 3)
        if ones == 0:
            counts[0] = point
        counts |= {1 + 2 * ones: lower - point, 2 + 2 * ones: pair - lower}
        rest -= pair
        ones += 1
    return counts, weighted + bits.difference(24 + (n // 2).bit_length() // 2)


@given(spectra())
@settings(max_examples=25)
def test_the_documented_encoding_is_enough_to_read_it(spectrum: Spectrum) -> None:
    data = spectrum.to_dict()
    bits = Bits(base64.b64decode(data["classes"])[4:])
    cells, squares = {}, {}
    for octave, n in enumerate(data["octaves"], data["lowest_octave"]):
        if n:
            counts, squares[octave] = read_octave(bits, n, data["fraction_bits"])
            cells |= {STRIDE * octave + i: count for i, count in counts.items() if count}
    assert cells == dict(zip(spectrum.keys.tolist(), spectrum.counts.tolist(), strict=True))
    assert squares == spectrum.squares
    rest = [*bits.bits]
    assert rest == [0] * len(rest)
    assert len(rest) < 8
    assert base64.b64decode(data["classes"])[:4] == checksum(data)


def checksum(data: dict[str, Any]) -> bytes:
    (amax,) = struct.unpack(">Q", struct.pack(">d", float.fromhex(data["amax"])))
    numbers = [data[name] for name in ("schema", *COUNTED)]
    numbers += [amax, data["fraction_bits"], data["finest"], data["lowest_octave"]]
    text = " ".join(json.dumps(number) for number in (*numbers, *data["octaves"]))
    return zlib.crc32(text.encode() + base64.b64decode(data["classes"])[4:]).to_bytes(4, "big")


# Sizes


def all_of_fp32() -> Spectrum:
    fractions = np.arange(2**23, dtype=np.uint32)
    total = Spectrum.of(fractions.view(np.float32))  # subnormals, and a zero
    octave = Spectrum.of((fractions | np.uint32(127 << 23)).view(np.float32))
    for exponent in range(-126, 128):
        total += octave.scaled(exponent)
    total = replace(total + total, positive_zeros=1, negative_zeros=1, nans=2**24 - 2)
    return replace(total, positive_infinities=1, negative_infinities=1)


@pytest.mark.parametrize(
    ("make", "size", "most"),
    [
        (normal, 10**4, 520),
        (normal, 10**6, 900),
        (normal, 10**7, 1100),
        (lambda n: normal(n).relu(), 10**6, 850),
        (lambda n: normal(n).bfloat16(), 10**6, 800),
        (lambda n: lognormal(n, 4.0), 10**4, 850),
        (lambda n: lognormal(n, 4.0), 10**6, 1500),
        (lambda n: lognormal(n, 4.0), 10**7, 1950),
        (lambda n: lognormal(n, 4.0, torch.bfloat16), 10**6, 1300),
        (lambda n: lognormal(n, 4.0, torch.float16), 10**6, 1300),
        (lambda n: torch.full((n,), 0.3), 10**6, 350),
    ],
)
def test_a_spectrum_takes_few_bytes(make: Callable[[int], Tensor], size: int, most: int) -> None:
    spectrum = Spectrum.of(make(size))
    text = spectrum.to_json()
    assert len(text) <= most <= 2000
    assert_same(Spectrum.from_json(text), spectrum)


def test_a_row_of_a_parquet_file_takes_few_bytes(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    flat = torch.exp2(torch.rand(10**6, generator=generator) * 40 - 40)
    spectra = [Spectrum.of(flat * (1 + i / 9)) for i in range(10)]
    sizes = []
    for rows in (spectra[:1], spectra):
        storage.write_parquet(tmp_path / "s.parquet", [({"n": 1}, s) for s in rows])
        sizes.append((tmp_path / "s.parquet").stat().st_size)
    assert (sizes[1] - sizes[0]) / 9 <= 1300


@pytest.mark.parametrize(("most", "size"), [(1000, 41_000), (2**45, 167_000)])
def test_the_worst_case(most: int, size: int) -> None:
    rng = np.random.default_rng(0)
    full = all_of_fp32()
    counts = rng.integers(1, most, full.keys.size, endpoint=True)
    held = replace(full, counts=counts).octave_counts()
    squares = {e: n * int(rng.integers(2**26, 2**28)) for e, n in held.items()}
    worst = replace(full, counts=counts, squares=squares, subnormals=0)
    assert_same(Spectrum.from_json(worst.to_json()), worst)
    assert 0.9 * size < len(worst.to_json()) <= size


# Damage


@given(st.data())
@settings(max_examples=150)
def test_every_alteration_is_noticed(data: st.DataObject) -> None:
    """One character of the JSON text is another, or the text ends early."""
    text = SAMPLE.to_json()
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from('0123456789abcXYZ+/-[]{},:"'))
    altered = text[:at] + data.draw(st.sampled_from(["", other + text[at + 1 :]]))
    try:
        got = Spectrum.from_json(altered)
    except SpectrumError as error:
        assert "damaged" in str(error) or "Update it" in str(error)  # noqa: PT017
    else:
        assert_same(got, SAMPLE)  # as when a digit replaces itself
        assert json.loads(altered) == json.loads(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "has schema 2; this floatscope reads 1. Update it."),
        ({"schema": 0}, "the schema unknown"),
        ({"schema": True}, "no integer"),
        ({"nans": -1}, "checksum"),
        ({"nans": 1.0}, "no integer"),
        ({"nans": "1"}, "no integer"),
        ({"finest": None}, "checksum"),
        ({"finest": 0.5}, "no integer"),
        ({"amax": 3.0}, "amax is no hexadecimal float"),
        ({"amax": "0x1p+9999"}, "amax is no hexadecimal float"),
        ({"amax": "0x1p+3"}, "checksum"),
        ({"lowest_octave": 2**24}, "there are no .* octaves from 16777216"),
        ({"octaves": "many"}, "of another type"),
        ({"octaves": [1, None]}, "no integer"),
        ({"octaves": [1, -1]}, "negative"),
        ({"octaves": [2**62, 2**62]}, "too large"),
        ({"octaves": [1, 2]}, "checksum"),
        ({"classes": "%%%"}, "no base64"),
        ({"classes": "é"}, "no base64"),
        ({"classes": None}, "no base64"),
        ({"classes": ""}, "checksum"),
    ],
)
def test_bad_values(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpectrumError, match=message):
        Spectrum.from_dict(SAMPLE.to_dict() | change)


@pytest.mark.parametrize("name", storage.COLUMNS)
def test_a_missing_value(name: str) -> None:
    data = SAMPLE.to_dict()
    del data[name]
    with pytest.raises(SpectrumError, match=f"it has no '{name}'"):
        Spectrum.from_dict(data)


@pytest.mark.parametrize("text", ["", "nonsense", "[1]", "3", "null", "[" * 100_000, b"\xff"])
def test_what_is_no_dictionary(text: str | bytes) -> None:
    with pytest.raises(SpectrumError, match="is damaged: it is"):
        Spectrum.from_json(text)


def test_other_keys_are_ignored() -> None:
    assert_same(Spectrum.from_dict({"name": "x"} | SAMPLE.to_dict()), SAMPLE)


def forged(data: dict[str, Any], classes: bytes) -> dict[str, Any]:
    """With a checksum that goes with the content."""
    data = data | {"classes": base64.b64encode(bytes(4) + classes).decode()}
    return data | {"classes": base64.b64encode(checksum(data) + classes).decode()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "nothing"),
        ({"nans": -1}, "a count is negative or too large"),
        ({"nans": 2**63}, "a count is negative or too large"),
        ({"subnormals": 5001}, "a count is negative or too large"),
        ({"amax": "nan"}, "amax is nan"),
        ({"amax": "-0x1p+1"}, "amax is -2.0"),
        ({"fraction_bits": 53}, "fraction_bits 53"),
        ({"finest": -(2**31) - 1}, "finest is -2147483649"),
        ({"octaves": [*SAMPLE.to_dict()["octaves"], 1]}, "the bits end too early"),
        ({"octaves": SAMPLE.to_dict()["octaves"][:-1]}, "bits are left over"),
    ],
)
def test_a_right_checksum_is_not_enough(change: dict[str, Any], message: str) -> None:
    data = SAMPLE.to_dict()
    data = forged(data | change, base64.b64decode(data["classes"])[4:])
    if change:
        with pytest.raises(SpectrumError, match=message):
            Spectrum.from_dict(data)
    else:
        assert data == SAMPLE.to_dict()


@given(st.lists(st.integers(0, 2**62), max_size=5), st.binary(max_size=300), st.integers(0, 52))
def test_any_bytes_give_a_spectrum_or_an_error(sizes: list[int], body: bytes, bits: int) -> None:
    """What passes keeps the rules, and its octaves are those that were given."""
    sizes = [n >> 3 for n in sizes]
    data = forged(SAMPLE.to_dict() | {"octaves": sizes, "fraction_bits": bits}, body)
    data["subnormals"] = 0
    try:
        got = Spectrum.from_dict(forged(data, body))
    except SpectrumError:
        return
    storage.check(got)
    assert [*got.octave_counts().values()] == [n for n in sizes if n]


def test_a_class_that_no_dtype_has_is_refused() -> None:
    """An element beyond 53 leading ones: of its class there is a code, but no number."""
    data = SAMPLE.to_dict() | {"octaves": [1], "subnormals": 0, "fraction_bits": 52}
    # k is 0 all the time: "1" is as many as expected, "010" one less. The element is not in the
    # first pair (010), so not expected in the next 51 (1); it has to be in the last of fp64 and is
    # not (010), but in the one after that (1).
    bits = "010" + "1" * 51 + "010" + "1"
    body = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")
    with pytest.raises(SpectrumError, match="1 elements in classes 107 to"):
        Spectrum.from_dict(forged(data, body))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": np.array([5, 5], np.int32)}, "do not ascend"),
        ({"keys": np.array([5, 4], np.int32)}, "do not ascend"),
        ({"keys": np.array([5], np.int32)}, "do not ascend"),
        ({"keys": np.array([5, 106], np.int32)}, "106 classes"),
        ({"keys": np.array([5, 2**40])}, "beyond int32"),
        ({"counts": np.array([3, 0])}, "a cell is empty"),
        ({"counts": np.array([3, -1])}, "a cell is empty"),
        ({"counts": np.array([2**62, 2**62])}, "negative or too large"),
        ({"squares": {}}, "not the same"),
        ({"squares": {0: 4 * 2**26, 1: 2**26}}, "not the same"),
        ({"squares": {0: 4 * 2**26 - 1}}, "octave 0 does not go with its 4 elements"),
        ({"squares": {0: 4 * 2**28 + 1}}, "octave 0 does not go with its 4 elements"),
        ({"nans": -1}, "negative"),
        ({"subnormals": 5}, "negative or too large"),
        ({"amax": math.nan}, "amax is nan"),
        ({"fraction_bits": 60}, "fraction_bits 60"),
        ({"finest": 2**31}, "finest is 2147483648"),
    ],
)
def test_a_spectrum_that_breaks_a_rule_is_not_stored(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    keys, counts = np.array([5, 7], np.int32), np.array([3, 1])
    good = Spectrum(keys=keys, counts=counts, squares={0: 4 * 2**27}, amax=1.9, fraction_bits=23)
    assert_same(Spectrum.from_json(good.to_json()), good)
    broken = replace(good, **change)
    with pytest.raises(SpectrumError, match=message):
        broken.to_dict()
    with pytest.raises(SpectrumError, match=message):
        storage.write_parquet(tmp_path / "s.parquet", [({}, broken)])
    assert not [*tmp_path.iterdir()]


def test_errors_belong_to_the_family() -> None:
    assert issubclass(SpectrumError, FloatscopeError)
    assert issubclass(TableError, FloatscopeError)


# Parquet


def labeled() -> list[tuple[dict[str, Any], Spectrum]]:
    return [
        ({"tensor": "w'1", "step": 0, "lr": 0.1, "is clipped": True}, SAMPLE),
        ({"tensor": "é", "step": 2**62, "lr": math.inf, "is clipped": False}, Spectrum.empty()),
        ({"tensor": "", "step": -1, "lr": 0.0, "is clipped": True}, Spectrum.of(normal(1000))),
    ]


def test_parquet_gives_back_labels_and_spectra(tmp_path: Path) -> None:
    path = tmp_path / "lr=1" / "[a]*'?" / "s.parquet"
    storage.write_parquet(path, iter(labeled()))
    rows = storage.read_parquet(str(path))
    assert [labels for labels, _ in rows] == [labels for labels, _ in labeled()]
    assert [type(v) for v in rows[0][0].values()] == [str, int, float, bool]
    for (_, got), (_, wanted) in zip(rows, labeled(), strict=True):
        assert_same(got, wanted)


@given(st.lists(spectra(), max_size=4))
@settings(max_examples=10)
def test_parquet_gives_back_any_spectra(
    tmp_path_factory: pytest.TempPathFactory, given_spectra: list[Spectrum]
) -> None:
    path = tmp_path_factory.mktemp("any") / "s.parquet"
    storage.write_parquet(path, [({}, spectrum) for spectrum in given_spectra])
    rows = storage.read_parquet(path)
    for (labels, got), wanted in zip(rows, given_spectra, strict=True):
        assert labels == {}
        assert_same(got, wanted)


def test_many_rows(tmp_path: Path) -> None:
    """More than one INSERT takes, in order."""
    rows = [({"step": i}, Spectrum.of(normal(50) * 2.0**i)) for i in range(-60, 191)]
    storage.write_parquet(tmp_path / "s.parquet", rows)
    got = storage.read_parquet(tmp_path / "s.parquet")
    assert [labels["step"] for labels, _ in got] == [*range(-60, 191)]
    assert all(a == b for (_, a), (_, b) in zip(got, rows, strict=True))


def test_sql_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    tensors = {"a": [normal(100), normal(50)], "b": [torch.tensor([1.0, 0.0, -0.0, math.nan])]}
    rows = [({"tensor": name}, Spectrum.of(x)) for name, xs in tensors.items() for x in xs]
    rows.append(({"tensor": "b"}, Spectrum.of(torch.full((7,), -math.inf))))
    storage.write_parquet(path, rows)
    with duckdb.connect() as connection:
        sizes = connection.execute(
            f"""SELECT tensor, sum(coalesce(list_sum(octaves), 0) + positive_zeros + negative_zeros
                    + positive_infinities + negative_infinities + nans)
                FROM '{path}' GROUP BY tensor ORDER BY tensor"""
        ).fetchall()
        octaves = connection.execute(
            f"""SELECT lowest_octave + unnest(range(len(octaves))) AS octave, unnest(octaves) AS n
                FROM '{path}' WHERE tensor = 'a'"""
        ).fetchall()
        amax = connection.execute(f"SELECT max(amax) FROM '{path}' WHERE tensor = 'a'").fetchone()
    assert sizes == [("a", 150), ("b", 11)]
    found: Counter[int] = Counter()
    for octave, n in octaves:
        found[octave] += n
    assert +found == Spectrum.sum(spectrum for _, spectrum in rows[:2]).octave_counts()
    assert amax == (float(normal(100).abs().max()),)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([{"a": 1}, {"b": 1}], "row 1 has {'b': 'BIGINT'}, the first {'a': 'BIGINT'}"),
        ([{"a": 1}, {"a": 1.0}], "need the same labels"),
        ([{"a": 1}, {}], "need the same labels"),
        ([{"NaNs": 1}], "has a column 'nans'"),
        ([{"A": 1, "a": 1}], "upper and lower case"),
        ([{"a": None}], "of type NoneType"),
        ([{"a": [1]}], "of type list"),
        ([{"a": 2**63}], "64 bits"),
        ([{"a": "\ud800"}], "no Unicode text"),
        ([{"": 1}], "a label's name"),
        ([{3: 1}], "a label's name"),
    ],
)
def test_labels_that_cannot_be_columns(
    labels: list[dict[Any, Any]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpectrumError, match=message):
        storage.write_parquet(tmp_path / "s.parquet", [(row, SAMPLE) for row in labels])
    assert not [*tmp_path.iterdir()]


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.parquet"
    storage.write_parquet(path, labeled())
    before = path.read_bytes()
    written = []

    def full(descriptor: int) -> None:
        written.extend(p.stat().st_size for p in tmp_path.glob(".s.parquet.*.tmp"))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(DiskError, match="the disk is full"):
        storage.write_parquet(path, labeled()[:1])
    assert written[0] > 0  # all was written, beside the file
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="could not be written"):
        storage.write_parquet(tmp_path / "file" / "s.parquet", labeled())
    with pytest.raises(DiskError, match="could not be written"):
        storage.write_parquet(tmp_path / ("x" * 250), labeled())


def test_a_missing_or_cut_off_file(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    with pytest.raises(SpectrumError, match="missing or damaged .* Write them again"):
        storage.read_parquet(path)
    storage.write_parquet(path, labeled())
    whole = path.read_bytes()
    for length in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(SpectrumError, match="missing or damaged"):
            storage.read_parquet(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("classes = classes[1:20]", "in row 0 of .*s.parquet, a spectrum is damaged: its checksum"),
        ("octaves[1] = octaves[1] + 1", "checksum"),
        ("nans = nans + 1", "checksum"),
        ("amax = NULL", "of another type"),
        ("octaves = [NULL]", "no integer"),
        ("schema = 7", "Update it"),
    ],
)
def test_an_altered_row(change: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    storage.write_parquet(path, labeled())
    name, value = change.split(" = ")
    if name == "octaves[1]":
        name, value = "octaves", "list_concat([octaves[1] + 1], octaves[2:])"
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t AS SELECT * REPLACE ({value} AS {name}) FROM '{path}'")
        connection.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    with pytest.raises(SpectrumError, match=message):
        storage.read_parquet(path)


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    write_table(path, {"x": "INTEGER"}, [{"x": 1, "y": 2}])
    with pytest.raises(SpectrumError, match="it has no column 'schema'"):
        storage.read_parquet(path)
    assert read_table(path) == {"x": [1]}
    with pytest.raises(TableError, match="the table .*s.parquet is missing or damaged"):
        read_table(path, ["z"])
