"""Conformance vectors for casts, from the exact reference; plain CSV for use by other projects.

    python -m conformance.vectors FOLDER [FORMAT ...]

For each catalogued float format of up to 16 bits:
    NAME.codes.csv      code, class, value (a hex float): every code
    NAME.rounding.csv   rounding, input (fp32 bits), code: every value, tie and neighbor under the
                        standard's rules; all deterministic modes up to 8 bits, nearest-even above
For each block format with blocks of a fixed size:
    NAME.blocks.csv     block, input (fp32 bits), value (fp32 bits), scale (hex float): a block a
                        number, with largest magnitudes at every edge
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import numpy as np

from conformance.inputs import decisive
from floatscope.errors import FormatError
from floatscope.files import write_text_atomically
from floatscope.formats import (
    BLOCKS,
    FLOATS,
    BlockFormat,
    FloatFormat,
    ScaleRule,
    classify,
    decode,
    encode,
)
from floatscope.rounding import Rounding, round_value
from floatscope.rounding.reference_blocks import round_block, scaling, tensor_encode

MODES = [mode for mode in get_args(Rounding) if mode != "stochastic"]
TOPS = [0, 1, 6, 7.5, 28, 448, 57344, 2.0**-119, 2.0**-126, 2.0**-149, 2.0**127]


def codes(form: FloatFormat) -> Iterable[tuple[str, ...]]:
    yield "code", "class", "value"
    for code in range(form.num_codes):
        yield hex(code), classify(code, form), float(decode(code, form)).hex()


def rounding(form: FloatFormat) -> Iterable[tuple[str, ...]]:
    yield "rounding", "input", "code"
    for mode in MODES if form.width <= 8 else ("nearest-even",):
        for bits in decisive(form):
            value = float(bits.view(np.float32))
            try:
                code = encode(round_value(value, form, rounding=mode), form)
            except FormatError:  # NaN into a format without
                continue
            yield mode, f"{bits:#010x}", hex(code)


def block_rows(form: BlockFormat) -> np.ndarray:
    """One block a row: random ones with a given largest magnitude, and all kinds of trouble."""
    size = min(form.elements_per_scale or 1, 128)
    rng = np.random.default_rng(0)
    tops = np.array(TOPS, np.float32)
    tops = np.concatenate([tops, np.nextafter(tops, np.float32(0))])
    rows = rng.uniform(-1, 1, (len(tops) + 4, size)).astype(np.float32)
    rows[: len(tops)] *= tops[:, None]
    rows[np.arange(len(tops)), 0] = tops
    rows[-2, 1], rows[-1, 2] = np.inf, np.nan
    return rows


def blocks(form: BlockFormat) -> Iterable[tuple[str, ...]]:
    yield "block", "input", "value", "scale"
    rows = block_rows(form)
    factor = None
    if form.rule is ScaleRule.NVFP4:
        factor = tensor_encode(np.abs(rows[np.isfinite(rows)]).max(), form)
    for number, row in enumerate(rows):
        how = scaling(np.abs(row).max(), form, factor)
        for value, result in zip(row, round_block(list(row), form, how), strict=True):
            ours = "nan" if math.isnan(result) else f"{result.view(np.uint32):#010x}"
            yield str(number), f"{value.view(np.uint32):#010x}", ours, float(how.scale).hex()


def write(path: Path, rows: Iterable[tuple[str, ...]]) -> None:
    lines = list(rows)
    write_text_atomically(path, "".join(",".join(line) + "\n" for line in lines))
    print(f"{path.name}: {len(lines) - 1} rows")


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder, chosen = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    for form in FLOATS:
        if form.width <= 16 and (not chosen or form.name in chosen):
            write(folder / f"{form.name}.codes.csv", codes(form))
            write(folder / f"{form.name}.rounding.csv", rounding(form))
    for form in BLOCKS:
        if form.elements_per_scale and (not chosen or form.name in chosen):
            write(folder / f"{form.name}.blocks.csv", blocks(form))


if __name__ == "__main__":
    main()
