"""Which tokens a step sees: a function of seed and step alone, so that there is no state to save.

Shape suffixes: B = sequences, T = tokens of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Token ids and, for each, the id that follows it."""

    inputs_BT: Tensor
    targets_BT: Tensor


def _windows(tokens: NDArray[np.uint16], starts: NDArray[np.int64], context: int) -> Batch:
    rows = np.stack([tokens[s : s + context + 1] for s in starts]).astype(np.int64)
    ids = torch.from_numpy(rows)
    return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


def training_batch(
    tokens: NDArray[np.uint16], *, seed: int, step: int, size: int, context: int
) -> Batch:
    """The batch of `step`: `size` windows at uniform random places, drawn with replacement.

    The draw is counter-based (Philox keyed by the seed, counted by the step), so step 300 needs no
    knowledge of steps 0 to 299.
    """
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, step]))
    starts = generator.integers(0, len(tokens) - context, size=size)
    return _windows(tokens, starts, context)


def validation_batches(
    tokens: NDArray[np.uint16], *, num_windows: int, size: int, context: int
) -> Iterator[Batch]:
    """`num_windows` windows spread evenly over `tokens`, in batches of at most `size`.

    The same for every seed and recipe. Fewer where the text is too short for that many without
    overlap.
    """
    last = len(tokens) - context - 1
    num_windows = max(1, min(num_windows, (last // context) + 1))
    starts = np.linspace(0, last, num_windows).astype(np.int64)
    for first in range(0, num_windows, size):
        yield _windows(tokens, starts[first : first + size], context)
