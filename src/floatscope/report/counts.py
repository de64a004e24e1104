"""Spectra as the page holds them: counts by octave, split at the edges of a few formats.

Exactly enough to say, for these formats and every power-of-two scale, what becomes of each element:
the page adds counts and gets the integers that `Spectrum.sweep` gets (`page/spectrum.js`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from floatscope.formats import FloatFormat
from floatscope.spectrum.cells import STRIDE, edges_of
from floatscope.spectrum.predict import float_format
from floatscope.spectrum.spectrum import Spectrum

FORMATS = ("fp16", "bf16", "e4m3fn", "e5m2", "e2m1fn")


def splits(formats: tuple[str, ...] = FORMATS) -> list[int]:
    """The classes of an octave at which some of the formats rounds otherwise, 0 first."""
    edges = {key % STRIDE for name in formats for key in _edges(float_format(name))}
    return sorted({0, *edges})


def _edges(form: FloatFormat) -> list[int]:
    return [key for key in edges_of(form) if key is not None]


def format_data(name: str) -> dict[str, Any]:
    """A format's edges, as octaves and indices into `splits`, and its ranges."""
    form, classes = float_format(name), splits()
    zero, normal, over = (
        None if key is None else [key // STRIDE, classes.index(key % STRIDE)]
        for key in edges_of(form)
    )
    return {
        "name": name, "zero": zero, "normal": normal, "over": over,
        "least": form.min_octave, "emin": form.emin, "emax": form.emax,
    }  # fmt: skip


def counts_data(spectrum: Spectrum) -> dict[str, Any]:
    """The counts of a spectrum: from octave `first` upwards, for each as many as there are splits.

    Zeros at the end of an octave are left out.
    """
    classes = splits()
    octaves = spectrum.octaves
    rows = [[0] * len(classes) for _ in octaves]
    for key, count in zip(spectrum.keys.tolist(), spectrum.counts.tolist(), strict=True):
        octave, number = divmod(key, STRIDE)
        rows[octave - octaves.start][bisect_right(classes, number) - 1] += count
    for row in rows:
        while row and not row[-1]:
            row.pop()
    return {"first": octaves.start if octaves else 0, "rows": rows}
