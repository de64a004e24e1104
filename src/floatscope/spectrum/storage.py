"""Stored spectra, lossless: as a dictionary, as JSON, or as a row of a Parquet file.

A stored spectrum is a few plain numbers and `octaves`, the counts of elements by octave from
`lowest_octave` upwards, readable as they are; without finite non-zero elements, none. `classes`
holds how these counts split over the classes of their octaves, and the square sums: as base64 in
JSON, as a BLOB in Parquet. amax is a hexadecimal float in JSON, a DOUBLE in Parquet; finest can be
null.

`classes` begins with a CRC-32 (zlib's, big-endian) of all the rest: of an ASCII text, and then of
the bytes after the CRC. The text is the values of `COLUMNS` before `classes`, in their order, as
decimal numbers with a blank between two: octave counts one after the other, for amax the integer
that has the bits of its fp64, and "null" for null. The bytes after the CRC are explained in
`class_code.py`.

An fp32 tensor of 10^7 elements takes 1.1 kB as JSON and 0.6 kB in a Parquet file if it is normal,
1.9 and 1.2 kB if it is log-normal over 42 octaves, 2.4 and 1.6 kB if it fills 40 octaves evenly.
Smaller tensors take less, and so do fp16 and bf16. All bit patterns of fp32 together take 18 and
12 kB. The worst case is every cell filled without any pattern: for fp32, with up to 1000 elements
in a cell, 41 and 30 kB, with up to 2^45 elements 166 and 124 kB; for fp64, 17 times as much.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from floatscope.errors import SpectrumError
from floatscope.spectrum.cells import STRIDE
from floatscope.spectrum.class_code import NUM_CLASSES, decode, encode
from floatscope.spectrum.spectrum import COUNTED, Spectrum
from floatscope.spectrum.tally import SIGNIFICAND_BITS
from floatscope.tables import TableError
from floatscope.tables import read_parquet as read_table
from floatscope.tables import write_parquet as write_table

SCHEMA_VERSION = 1
COLUMNS = {
    "schema": "INTEGER",
    **dict.fromkeys(COUNTED, "BIGINT"),
    "amax": "DOUBLE",
    "fraction_bits": "INTEGER",
    "finest": "INTEGER",
    "lowest_octave": "INTEGER",
    "octaves": "BIGINT[]",
    "classes": "BLOB",
}
"""Fields of a stored spectrum and their DuckDB types."""

Label = str | int | float | bool
"""What a spectrum in a Parquet file can be found by."""

_LABEL_TYPES = {str: "VARCHAR", bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}
_MOST = 2**63 - 1
_MOST_FRACTION_BITS = 52
_EXPONENTS = range(-(2**31), 2**31)
_OCTAVES = range(-(2**31) // STRIDE, 2**31 // STRIDE)  # those whose keys are int32
_LEAST_SQUARE = 2 ** (2 * (SIGNIFICAND_BITS - 1))
_GREATEST_SQUARE = 2 ** (2 * SIGNIFICAND_BITS)


# Dictionaries and JSON


def to_dict(spectrum: Spectrum) -> dict[str, Any]:
    """A spectrum as plain JSON values.

    Raises:
        SpectrumError: it breaks a rule of spectra (see `check`).
    """
    fields = _fields(spectrum)
    fields["amax"] = fields["amax"].hex()
    fields["classes"] = base64.b64encode(fields["classes"]).decode()
    return fields


def from_dict(data: Mapping[str, Any]) -> Spectrum:
    """The spectrum that `to_dict` was given; what else `data` holds is ignored.

    Raises:
        SpectrumError: a value is missing, altered or cut off, or the schema is newer.
    """
    if not isinstance(data, Mapping):
        _damaged(f"it is of type {type(data).__name__}, not a dictionary")
    fields = dict(data)
    try:
        fields["amax"] = float.fromhex(fields["amax"])
        fields["classes"] = base64.b64decode(fields["classes"], validate=True)
    except KeyError as error:
        _damaged(f"it has no {error}")
    except (TypeError, ValueError, OverflowError) as error:
        _damaged(f"amax is no hexadecimal float, or classes no base64 ({error})")
    return _spectrum(fields)


def to_json(spectrum: Spectrum) -> str:
    """`to_dict` as one line of ASCII without blanks.

    Raises:
        SpectrumError: see `to_dict`.
    """
    return json.dumps(to_dict(spectrum), separators=(",", ":"))


def from_json(text: str | bytes) -> Spectrum:
    """The spectrum that `to_json` was given.

    Raises:
        SpectrumError: see `from_dict`; also if the text is no JSON.
    """
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        _damaged(f"it is no JSON ({error})")
    return from_dict(data)


# Parquet


def write_parquet(path: str | Path, rows: Iterable[tuple[Mapping[str, Label], Spectrum]]) -> None:
    """Write labeled spectra into a Parquet file, atomically.

    The columns are the labels, then `COLUMNS`. In DuckDB's SQL a row has so many elements:

        coalesce(list_sum(octaves), 0) + positive_zeros + negative_zeros
            + positive_infinities + negative_infinities + nans

    Args:
        path: of the file; what was there is replaced.
        rows: labels and spectra. All rows have the same labels, of the same types.

    Raises:
        SpectrumError: labels differ between rows, have a name of `COLUMNS` or hold something else
            than a `Label`; or a spectrum breaks a rule (see `check`). Nothing is written.
        DiskError: the disk is full or the folder cannot be written.
    """
    rows = list(rows)
    columns = {**_label_columns([labels for labels, _ in rows]), **COLUMNS}
    write_table(Path(path), columns, [{**labels, **_fields(spectrum)} for labels, spectrum in rows])


def read_parquet(path: str | Path) -> list[tuple[dict[str, Any], Spectrum]]:
    """The labels and spectra in a file of `write_parquet`, in its order.

    Columns that are none of `COLUMNS` are labels. Spectra have checksums, labels have none.

    Raises:
        SpectrumError: the file, or a spectrum in it, is missing or damaged.
    """
    try:
        table = read_table(Path(path), COLUMNS)
    except TableError as error:
        raise SpectrumError(
            f"the spectra in {path} are missing or damaged ({error.reason}). Write them again."
        ) from None
    result = []
    for number, values in enumerate(zip(*table.values(), strict=True)):
        labels = dict(zip(table, values, strict=True))
        fields = {name: labels.pop(name) for name in COLUMNS}
        try:
            result.append((labels, _spectrum(fields)))
        except SpectrumError as error:
            raise SpectrumError(f"in row {number} of {path}, {error}") from None
    return result


def _label_columns(rows: Sequence[Mapping[str, Label]]) -> dict[str, str]:
    """Names and types of the labels."""
    columns: dict[str, str] = {}
    for number, labels in enumerate(rows):
        found = {name: _label_type(name, value) for name, value in labels.items()}
        columns = columns if number else found
        if found != columns:
            raise SpectrumError(
                f"spectra in one file need the same labels: row {number} has {found}, the first "
                f"{columns}."
            )
    lowered = [name.lower() for name in columns]  # as DuckDB compares them
    if taken := [name for name in lowered if name in COLUMNS]:
        raise SpectrumError(f"every spectrum has a column {taken[0]!r}. Rename that label.")
    if len({*lowered}) < len(lowered):
        raise SpectrumError(f"labels {[*columns]} differ in upper and lower case only. Rename one.")
    return columns


def _label_type(name: str, value: Label) -> str:
    if not isinstance(name, str) or not name:
        raise SpectrumError(f"a label's name becomes a column's: {name!r} cannot. Rename it.")
    try:
        f"{name}{value}".encode()
    except UnicodeEncodeError:
        raise SpectrumError(f"label {name!r} = {value!r} is no Unicode text.") from None
    for kind, called in _LABEL_TYPES.items():
        if isinstance(value, kind):
            if called == "BIGINT" and not -_MOST - 1 <= int(value) <= _MOST:
                raise SpectrumError(f"label {name!r} is {value}: integers are stored in 64 bits.")
            return called
    raise SpectrumError(
        f"label {name!r} is of type {type(value).__name__}; str, int, float and bool can be stored."
    )


# One spectrum


def check(spectrum: Spectrum) -> None:
    """See that a spectrum keeps the rules that all measured ones and their sums keep.

    Raises:
        SpectrumError: keys do not ascend; a cell is empty; a count is negative, or cells hold 2^63
            elements or more; square sums do not go with the counts; amax is NaN or negative; an
            exponent or fraction_bits is none of any dtype, however scaled.
    """
    keys, counts = spectrum.keys, spectrum.counts
    if keys.shape != counts.shape or (keys[1:] <= keys[:-1]).any() or (counts < 1).any():
        _damaged("its keys do not ascend, or a cell is empty")
    if (keys % STRIDE >= NUM_CLASSES).any():
        _damaged(f"an octave has {NUM_CLASSES} classes, and a key is of a higher one")
    total = sum(counts.tolist())
    others = [getattr(spectrum, name) for name in COUNTED]
    if not all(0 <= n <= _MOST for n in (total, *others)) or spectrum.subnormals > total:
        _damaged("a count is negative or too large")
    amax, fraction_bits = spectrum.amax, spectrum.fraction_bits
    if math.isnan(amax) or amax < 0 or not 0 <= fraction_bits <= _MOST_FRACTION_BITS:
        _damaged(f"amax is {amax}, and fraction_bits {fraction_bits}")
    if spectrum.finest is not None and spectrum.finest not in _EXPONENTS:
        _damaged(f"finest is {spectrum.finest}")
    held = spectrum.octave_counts()
    if any(octave not in _OCTAVES for octave in held):
        _damaged("a key is beyond int32")
    if held.keys() != spectrum.squares.keys():
        _damaged("octaves that hold elements and octaves with a square sum are not the same")
    for octave, size in held.items():
        if not size * _LEAST_SQUARE <= spectrum.squares[octave] <= size * _GREATEST_SQUARE:
            _damaged(f"the square sum of octave {octave} does not go with its {size} elements")


def _fields(spectrum: Spectrum) -> dict[str, Any]:
    """A spectrum as values for `COLUMNS`."""
    check(spectrum)
    held = spectrum.octave_counts()
    cells = np.zeros((len(held), NUM_CLASSES), np.int64)
    where = np.searchsorted(np.array([*held], np.int64), spectrum.keys // STRIDE)
    cells[where, spectrum.keys % STRIDE] = spectrum.counts
    squares = [int(spectrum.squares[octave]) for octave in held]
    fields = {
        "schema": SCHEMA_VERSION,
        **{name: int(getattr(spectrum, name)) for name in COUNTED},
        "amax": float(spectrum.amax),
        "fraction_bits": int(spectrum.fraction_bits),
        "finest": None if spectrum.finest is None else int(spectrum.finest),
        "lowest_octave": min(held, default=0),
        "octaves": [held.get(octave, 0) for octave in spectrum.octaves],
    }
    split = encode([*zip(cells.tolist(), squares, strict=True)], fields["fraction_bits"])
    fields["classes"] = _checksum(fields, split) + split
    return fields


def _spectrum(fields: Mapping[str, Any]) -> Spectrum:
    """The spectrum of such values, whatever they are.

    Raises:
        SpectrumError: they are none of `_fields`.
    """
    schema = fields.get("schema")
    if type(schema) is int and schema > SCHEMA_VERSION:
        raise SpectrumError(
            f"a spectrum has schema {schema}; this floatscope reads {SCHEMA_VERSION}. Update it."
        )
    for name in COLUMNS:
        if name not in fields:
            _damaged(f"it has no {name!r}")
    octaves, lowest, data = fields["octaves"], fields["lowest_octave"], fields["classes"]
    if not (isinstance(octaves, list) and type(fields["amax"]) is float and type(data) is bytes):
        _damaged("octaves, amax or classes are of another type")
    others = ("amax", "octaves", "classes", *(["finest"] if fields["finest"] is None else []))
    numbers = [fields[name] for name in COLUMNS if name not in others]
    if any(type(number) is not int for number in numbers + octaves) or schema != SCHEMA_VERSION:
        _damaged("a count is no integer, or the schema unknown")
    if any(count < 0 for count in octaves) or sum(octaves) > _MOST:
        _damaged("the count of an octave is negative or too large")
    if lowest not in _OCTAVES or lowest + max(len(octaves) - 1, 0) not in _OCTAVES:
        _damaged(f"there are no {len(octaves)} octaves from {lowest}")
    if data[:4] != _checksum(fields, data[4:]):
        _damaged("its checksum does not go with its content, which was altered or cut off")
    spectrum = _decoded(fields)
    check(spectrum)
    return spectrum


def _decoded(fields: Mapping[str, Any]) -> Spectrum:
    lowest = fields["lowest_octave"]
    held = {lowest + i: size for i, size in enumerate(fields["octaves"]) if size}
    try:
        split = decode(fields["classes"][4:], [*held.values()], fields["fraction_bits"])
    except ValueError as error:
        _damaged(f"its classes cannot be read ({error})")
    cells = {
        STRIDE * octave + number: count
        for octave, (counts, _) in zip(held, split, strict=True)
        for number, count in enumerate(counts)
        if count
    }
    return Spectrum(
        keys=np.array([*cells], np.int32),
        counts=np.array([*cells.values()], np.int64),
        squares={octave: square for octave, (_, square) in zip(held, split, strict=True)},
        **{name: fields[name] for name in COUNTED},
        amax=fields["amax"],
        fraction_bits=fields["fraction_bits"],
        finest=fields["finest"],
    )


def _checksum(fields: Mapping[str, Any], split: bytes) -> bytes:
    amax = int.from_bytes(struct.pack(">d", fields["amax"]))
    counts = [fields[name] for name in ("schema", *COUNTED)]
    finest = "null" if fields["finest"] is None else fields["finest"]
    rest = (amax, fields["fraction_bits"], finest, fields["lowest_octave"], *fields["octaves"])
    text = " ".join(map(str, (*counts, *rest)))
    return zlib.crc32(split, zlib.crc32(text.encode())).to_bytes(4)


def _damaged(why: str) -> NoReturn:
    raise SpectrumError(f"a spectrum is damaged: {why}. Measure it, or store it, again.")
