"""Activations of a standard transformer block: the formula sbh (34 + 5 a s / h) and its variants.

Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models
(arXiv 2205.05198). The block has LayerNorm, a GELU feed-forward four times as wide as the model,
three dropouts and materialized scores, in a 16-bit format; other blocks save other tensors
(`closed_form.py` has the laboratory's).

Symbols: s = tokens in a sequence, b = micro-batch, h = width, a = heads, L = layers,
v = vocabulary; t, p = degrees of tensor and pipeline parallelism, m = interleaved stages a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from floatscope.errors import LedgerError, unknown
from floatscope.memory.ledger import Category, Ledger, Lifetime, Row, Stage
from floatscope.memory.units import up

Recompute = Literal["none", "selective", "full"]
RECOMPUTE = ("none", "selective", "full")
SOURCE = "Korthikanti et al. 2022 (arXiv 2205.05198)"


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """Shape of a standard transformer and of its micro-batch."""

    sequence: int
    """s, tokens."""
    batch: int
    """b, sequences in a micro-batch."""
    width: int
    """h."""
    heads: int
    """a."""
    layers: int
    """L."""
    vocab: int = 0
    """v; 0 where only the blocks are asked for."""

    def __post_init__(self) -> None:
        for name in ("sequence", "batch", "width", "heads", "layers"):
            _check_count(name, getattr(self, name), 1)
        _check_count("vocab", self.vocab, 0)

    @property
    def num_parameters(self) -> int:
        """Weights, biases, gains and positions of a GPT whose head is tied to its embedding.

        12 L h^2 (1 + 13 / (12 h) + (v + s) / (12 L h)): Narayanan et al. 2021 (arXiv 2104.04473).
        """
        h = self.width
        return 12 * self.layers * h * h + 13 * self.layers * h + (self.vocab + self.sequence) * h


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How a model is split over devices."""

    tensor: int = 1
    """t: matrices are split t ways."""
    sequence: bool = False
    """Whether what tensor parallelism leaves whole (norms, dropouts, inputs) is split too."""
    pipeline: int = 1
    """p: layers are split p ways, one forward one backward (1F1B)."""
    interleaving: int = 1
    """m: pieces of the pipeline a device holds; 1 is not interleaved."""

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "interleaving"):
            _check_count(name, getattr(self, name), 1)

    @property
    def in_flight(self) -> Fraction:
        """Layers whose activations the first stage holds, as a multiple of L.

        1F1B keeps p micro-batches of L / p layers there; interleaved, (1 + (p - 1) / (p m)) times
        as many.
        """
        if self.interleaving == 1:
            return Fraction(1)
        return 1 + Fraction(self.pipeline - 1, self.pipeline * self.interleaving)


class Term(NamedTuple):
    """One tensor a block saves: `bytes_sbh` * sbh + `bytes_ass` * a s^2 b, in a 16-bit format."""

    name: str
    operation: str
    bytes_sbh: int
    bytes_ass: int
    split: bool
    """Whether tensor parallelism splits it."""


BLOCK = (
    Term("input of the q, k, v products", "attention", 2, 0, False),
    Term("q and k", "attention", 4, 0, True),
    Term("softmax output", "attention scores", 0, 2, True),
    Term("mask of the scores' dropout", "attention scores", 0, 1, True),
    Term("scores after dropout", "attention scores", 0, 2, True),
    Term("v", "attention", 2, 0, True),
    Term("input of the output projection", "attention", 2, 0, True),
    Term("mask of attention's dropout", "attention", 1, 0, False),
    Term("input of the first feed-forward product", "feed-forward", 2, 0, False),
    Term("input of GELU", "feed-forward", 8, 0, True),
    Term("input of the second feed-forward product", "feed-forward", 8, 0, True),
    Term("mask of the feed-forward's dropout", "feed-forward", 1, 0, False),
    Term("inputs of the two norms", "norms", 4, 0, False),
)
"""11 sbh + 5 a s^2 b of attention, 19 sbh of feed-forward, 4 sbh of norms (the paper's 4.1)."""

CHECKPOINT = (Term("input of the block", "checkpoint", 2, 0, False),)


def activations(
    shape: Transformer,
    parallel: Parallel | None = None,
    recompute: Recompute = "none",
    *,
    element_bytes: int = 2,
) -> Ledger:
    """Saved activations of all blocks on a device of the first pipeline stage, in bytes.

    Args:
        shape: of model and micro-batch.
        parallel: None is a single device.
        recompute: "selective" recomputes scores, softmax and their dropout; "full" keeps each
            block's input alone. Neither saves anything else.
        element_bytes: bytes of an element; the formula is for 2. With 4 all terms double, the
            one-byte masks too, which overstates them; it is how fp32 is commonly estimated.

    Returns:
        A row a term. Where a degree does not divide a size, the bytes of the fullest device.

    Raises:
        LedgerError: no such kind of recomputation, or an element without bytes.
    """
    parallel = parallel or Parallel()
    if recompute not in RECOMPUTE:
        raise LedgerError(unknown("recomputation", recompute, RECOMPUTE))
    _check_count("element_bytes", element_bytes, 1)
    held = parallel.in_flight * shape.layers * Fraction(element_bytes, 2)
    return Ledger(
        _row(term.name, term.operation, up(held * size))
        for term, size in _block(shape, parallel, recompute)
    )


def bytes_per_layer(
    shape: Transformer, parallel: Parallel | None = None, recompute: Recompute = "none"
) -> Fraction:
    """Bytes that one layer of one micro-batch saves in a 16-bit format, exactly."""
    terms = _block(shape, parallel or Parallel(), recompute)
    return sum((size for _, size in terms), Fraction(0))


def _block(
    shape: Transformer, parallel: Parallel, recompute: Recompute
) -> Iterator[tuple[Term, Fraction]]:
    sbh = shape.sequence * shape.batch * shape.width
    ass = shape.heads * shape.sequence**2 * shape.batch
    for term in CHECKPOINT if recompute == "full" else BLOCK:
        if recompute == "selective" and term.bytes_ass:
            continue
        is_split = term.split or (parallel.sequence and recompute != "full")
        degree = parallel.tensor if is_split else 1
        yield term, Fraction(term.bytes_sbh * sbh + term.bytes_ass * ass, degree)


def around_the_blocks(
    shape: Transformer, parallel: Parallel | None = None, *, element_bytes: int = 2
) -> Ledger:
    """What the first stage saves beside the blocks, in elements of `element_bytes` bytes.

    The embedding's dropout, one mask for each micro-batch in flight; and, where the pipeline has
    one stage and so the head too, the last norm's input, the head's, and the logits in fp32.
    """
    parallel = parallel or Parallel()
    sbh = shape.sequence * shape.batch * shape.width
    mask = Fraction(sbh * parallel.pipeline, parallel.tensor)
    rows = [_row("mask of the embedding's dropout", "embedding", up(mask))]
    if parallel.pipeline == 1:
        half = up(Fraction(element_bytes * sbh, parallel.tensor))
        logits = up(Fraction(4 * shape.sequence * shape.batch * shape.vocab, parallel.tensor))
        rows += [
            _row("input of the last norm", "norms", half),
            _row("input of the head", "head", half),
            _row("logits", "loss", logits, Category.LOSS, "fp32"),
        ]
    return Ledger(rows)


def pipeline_outputs(shape: Transformer, parallel: Parallel) -> int:
    """Bytes saved by freeing each stage's output once it is sent: 2 s b h p."""
    return 2 * shape.sequence * shape.batch * shape.width * parallel.pipeline


def selective_overhead(shape: Transformer) -> Fraction:
    """Share of FLOPs that selective recomputation adds: s / (6 h)."""
    return Fraction(shape.sequence, 6 * shape.width)


def _row(
    term: str,
    operation: str,
    size: int,
    category: Category = Category.ACTIVATIONS,
    dtype: str = "",
) -> Row:
    return Row(
        term=term,
        category=category,
        bytes=size,
        operation=operation,
        dtype=dtype,
        lifetime=Lifetime.SAVED,
        stage=Stage.FORWARD,
        reason=SOURCE,
    )


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LedgerError(f"{name} must be an integer of at least {least}, not {value!r}.")
