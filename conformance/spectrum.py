"""Predictions of a spectrum against real casts: every float format, 61 scales, 10^7 inputs.

    python -m conformance.spectrum [FORMAT ...] [--random 10000000]

Counts are compared, and that compares elements: what a prediction counts and what a cast counts are
both all elements on one side of some magnitude, so equal numbers are equal elements, and the
difference of the numbers is how many elements are judged wrongly.

The cast is `round_to` of the exactly scaled value. An fp32 number times 2^k is made in fp64, which
holds it; in fp32 it may already round. An fp64 number times 2^k may round in fp64 too, where it
becomes subnormal or infinite. For a cast to fp64 this one rounding is the cast. For a cast to a
format that ends well inside fp64 it changes nothing: what is that small or large stays on its side
of every threshold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.formats import FLOATS, FloatFormat
from floatscope.formats import format as format_called
from floatscope.rounding import round_to
from floatscope.spectrum.spectrum import Spectrum

MADE = "e5m6 e2m5fn e4m1fn e6m9 e3m2fnuz e8m1 e1m2 e4m0 e2m1fnuz e9m14 e8m22fn".split()
"""Formats by name beside the catalogue: odd sizes, all suffixes, no fraction, ends beyond fp32."""
SCALES = range(-20, 41)
KINDS = ("underflow", "subnormal", "overflow")
CHUNK = 1 << 17
RANDOM = 10_000_000


def floats(names: Iterable[str] = ()) -> list[FloatFormat]:
    """The float formats of these names; without any, those of the catalogue and `MADE`."""
    names = [*names] or [*(form.name for form in FLOATS), *MADE]
    forms = [format_called(name) for name in names]
    return [form for form in forms if isinstance(form, FloatFormat)]


def thresholds(form: FloatFormat) -> list[Fraction]:
    """The magnitudes at which a cast's answer changes, and the values beside them."""
    last_step = Fraction(2) ** (form.emin - form.fraction_bits)
    below_normal = [form.smallest_normal - last_step / 2, form.smallest_normal] if form.zero else []
    zero = [form.zero_threshold, form.smallest] if form.zero else [form.smallest]
    return [*zero, *below_normal, form.max, form.overflow_threshold]


def special_inputs(
    forms: Sequence[FloatFormat], scales: Iterable[int], number: type = np.float32
) -> NDArray[np.floating]:
    """All that decides: thresholds at every scale, powers of two, subnormals; both signs.

    Every threshold is there with both neighbors, wherever the number's range has them.
    """
    info = np.finfo(number)
    lowest, highest = info.minexp - info.nmant, info.maxexp
    points = {t / Fraction(2) ** k for form in forms for t in thresholds(form) for k in scales}
    inside = [p for p in points if Fraction(2) ** lowest <= p < Fraction(2) ** highest]
    powers = np.ldexp(number(1), np.arange(lowest, highest))
    unsigned = np.uint32 if number is np.float32 else np.uint64
    first = np.arange(1, 1 << 12, dtype=unsigned)
    spread = np.arange(1, 1 << info.nmant, 1 << (info.nmant - 14), dtype=unsigned)
    with np.errstate(over="ignore", under="ignore"):
        near = np.concatenate([np.array([_rounded(p) for p in inside], number), powers])
        around = [np.nextafter(near, number(end)) for end in (0, np.inf)]
        ends = np.array([0, np.inf, np.nan, info.max, info.tiny], number)
    subnormals = np.concatenate([first, spread]).view(number)
    magnitudes = np.unique(np.concatenate([near, *around, ends, subnormals]))
    return np.concatenate([magnitudes, -magnitudes])


def _rounded(value: Fraction) -> float:
    """The nearest fp64 number; infinite beyond them."""
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def random_patterns(count: int, number: type = np.float32, seed: int = 0) -> NDArray[np.floating]:
    """Numbers of random bits: every exponent, infinities and NaNs too."""
    bits = np.random.default_rng(seed).bytes(count * np.dtype(number).itemsize)
    return np.frombuffer(bits, number).copy()


def cast_counts(scaled: Tensor, form: FloatFormat) -> tuple[int, int, int]:
    """How many really become zero, become subnormal, and overflow.

    Args:
        scaled: fp64 products of a scale and numbers that were finite and not zero.
        form: cast to its values by its standard rules; an unsigned format gets magnitudes. Where
            neither infinity nor NaN shows an overflow, the threshold says it.
    """
    given = scaled if form.signed else scaled.abs()
    result = round_to(given, form).abs_()
    zeros = int((result == 0).sum())
    below_normal = int((result < float(form.smallest_normal)).sum())
    if form.has_infinity or form.has_nan:
        kept = int((result <= float(form.max)).sum())
    else:
        edge = float(form.overflow_threshold)
        magnitude = given.abs()
        kept = int((magnitude < edge if form.tie_overflows else magnitude <= edge).sum())
    return zeros, below_normal - zeros, scaled.numel() - kept


def mismatches(
    x: Tensor, forms: Sequence[FloatFormat], scales: Sequence[int], *, show: bool = False
) -> NDArray[np.int64]:
    """Elements of fp32 or fp64 that a prediction judges wrongly.

    Returns:
        By format, scale and kind.
    """
    exponents = np.array(scales)
    spectrum = Spectrum.of(x)
    sweeps = [spectrum.sweep(form, exponents) for form in forms]
    predicted = [[getattr(sweep, kind) for kind in KINDS] for sweep in sweeps]
    real = np.zeros((len(forms), len(scales), len(KINDS)), np.int64)
    chunks = x[x.isfinite() & (x != 0)].split(CHUNK)
    started = time.perf_counter()
    for number, chunk in enumerate(chunks, 1):
        wide = chunk.double()
        for j, exponent in enumerate(scales):
            scaled = wide * 2.0**exponent
            for i, form in enumerate(forms):
                real[i, j] += cast_counts(scaled, form)
        if show:
            took = time.perf_counter() - started
            print(f"\r{number} of {len(chunks)} chunks ({took:.0f} s)", end="", file=sys.stderr)
    if show:
        print(file=sys.stderr)
    return np.abs(np.array(predicted).transpose(0, 2, 1) - real)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("formats", nargs="*", help="names; by default all")
    parser.add_argument("--random", type=int, default=RANDOM, help="random fp32 bit patterns")
    options = parser.parse_args()
    torch.set_num_threads(1)
    forms = floats(options.formats)
    special = special_inputs(forms, SCALES)
    x = torch.from_numpy(np.concatenate([special, random_patterns(options.random)]))
    print(f"{len(special)} special inputs, {options.random} random, {len(forms)} formats, "
          f"scales 2^{SCALES[0]} ... 2^{SCALES[-1]}", flush=True)  # fmt: skip
    started = time.perf_counter()
    wrong = mismatches(x, forms, SCALES, show=True)
    for form, found in zip(forms, wrong, strict=True):
        kinds = ", ".join(f"{kind} {n}" for kind, n in zip(KINDS, found.sum(0), strict=True))
        scales = [f"2^{SCALES[j]}" for j in np.flatnonzero(found.sum(1))[:3]]
        print(f"{form.name:12} mismatches: {kinds} {'at ' + ', '.join(scales) if scales else ''}")
    casts = int((x.isfinite() & (x != 0)).sum()) * len(forms) * len(SCALES)
    print(f"{casts:.3g} casts, {wrong.sum()} mismatches ({time.perf_counter() - started:.0f} s)")
    sys.exit(bool(wrong.any()))


if __name__ == "__main__":
    main()
