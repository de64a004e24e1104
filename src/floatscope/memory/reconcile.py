"""From the formula to the measurement, and from one recipe to another, as signed terms.

The formula describes a standard block; the laboratory's is another one. Every row of the formula
and every row of the closed form belongs to one term, so the terms lead from one sum to the other
with nothing left; what a measurement has beyond the closed form is unexplained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from floatscope.memory.closed_form import SIZES, GPTNumbers, saved
from floatscope.memory.formula import Transformer, activations
from floatscope.memory.ledger import Category, Ledger, Lifetime, Row, Stage
from floatscope.recipes import recipe as recipe_called


class _Term(NamedTuple):
    term: str
    category: Category
    formula: tuple[str, ...]
    """Rows of the formula that it replaces."""
    ours: Callable[[Row], bool]
    """Rows of the closed form that it puts in their place."""
    reason: str
    """Of the difference to the formula."""
    rows: str
    """What the rows are, for the difference between two recipes."""


def _in_blocks(*terms: str) -> Callable[[Row], bool]:
    return lambda row: row.term in terms and row.module.startswith("blocks.")


def _anywhere(*terms: str) -> Callable[[Row], bool]:
    return lambda row: row.term in terms


def _behind_blocks(row: Row) -> bool:
    terms = ("norm input", "normalized", "1 / rms", "norm output", "cast of norm output")
    return row.term in terms and not row.module.startswith("blocks.")


_TERMS = (
    _Term(
        "no dropout",
        Category.ACTIVATIONS,
        (
            "mask of the scores' dropout", "scores after dropout", "mask of attention's dropout",
            "mask of the feed-forward's dropout",
        ),
        _anywhere(),
        "no masks and no dropped scores; doubling the formula for fp32 doubles the masks too",
        "nothing in any recipe",
    ),
    _Term(
        "SwiGLU",
        Category.ACTIVATIONS,
        ("input of GELU", "input of the second feed-forward product"),
        _in_blocks("gate", "silu(gate)", "up", "gated"),
        "four tensors of the feed-forward's width instead of two of 4 h",
        "gate, silu(gate), up and their product, in the format between products",
    ),
    _Term(
        "norms keep more",
        Category.ACTIVATIONS,
        (),
        _in_blocks("normalized", "1 / rms"),
        "rms_norm is composed on a CPU, in fp32: the normalized input and 1 / rms are saved too",
        "normalized inputs and 1 / rms, in fp32",
    ),
    _Term(
        "residual stream in fp32",
        Category.ACTIVATIONS,
        ("inputs of the two norms",),
        _in_blocks("norm input"),
        "autocast leaves the inputs of norms in fp32, and in a model of 16 bits norms widen them",
        "inputs of norms, in fp32",
    ),
    _Term(
        "one cast a consumer",
        Category.CASTS,
        ("input of the q, k, v products", "input of the first feed-forward product"),
        _in_blocks("norm output", "cast of norm output"),
        "under autocast q, k and v get three 16-bit copies of a norm's output, gate and up two",
        "norms' outputs: in fp32 and in a model of 16 bits one for all layers that read it, under "
        "autocast a 16-bit copy for each",
    ),
    _Term(
        "attention",
        Category.ACTIVATIONS,
        ("q and k", "softmax output", "v", "input of the output projection"),
        _in_blocks(
            "rotated q", "rotated k", "v", "softmax output", "attention output", "fused output"
        ),
        "the fused kernel's output is saved, and its transposed copy for the projection",
        "q, k, v, probabilities or the fused kernel's output, and the projection's input, in the "
        "format between products",
    ),
    _Term(
        "log-sum-exp",
        Category.ACTIVATIONS,
        (),
        _in_blocks("log-sum-exp"),
        "fp32, one a head and token, from which fused attention computes its scores again",
        "of fused attention, in fp32",
    ),
    _Term(
        "last norm and head",
        Category.ACTIVATIONS,
        (),
        _behind_blocks,
        "behind the blocks: outside the formula for a layer",
        "the last norm, in fp32, and the head's input, in the format between products",
    ),
    _Term(
        "log-softmax",
        Category.LOSS,
        (),
        _anywhere("log-softmax", "total weight"),
        "of the loss: in fp32, or in the dtype of a model of 16 bits",
        "of the loss: in fp32, or in the dtype of a model of 16 bits",
    ),
    _Term(
        "casts of weights and tables",
        Category.CASTS,
        (),
        _anywhere("cast of weight", "cast of RoPE table"),
        "2 bytes for each element of a matrix, and the RoPE tables once for q and once for k",
        "autocast's copies, 2 bytes an element; a model of 16 bits needs none",
    ),
    _Term(
        "ids and targets",
        Category.INPUT,
        (),
        _anywhere("ids", "targets"),
        "int64; the embedding and the loss save them",
        "int64",
    ),
)  # fmt: skip


def formula_for(numbers: GPTNumbers, recipe: str) -> Ledger:
    """What the standard block's formula gives for the laboratory's shape, in bytes.

    In fp32 doubled, as it is commonly done; with fused attention without the scores.

    Raises:
        RecipeError: no such recipe.
    """
    shape = Transformer(
        sequence=numbers.context,
        batch=numbers.batch_size,
        width=numbers.width,
        heads=numbers.num_heads,
        layers=numbers.num_layers,
    )
    return activations(
        shape,
        recompute="selective" if numbers.attention == "fused" else "none",
        element_bytes=SIZES[recipe_called(recipe).products],
    )


def reconcile(
    numbers: GPTNumbers, recipe: str, measured: Ledger | None = None, backend: str = "native"
) -> Ledger:
    """The terms that lead from the formula to what is saved, in bytes.

    Args:
        numbers: shape of model and batch.
        recipe: name of a recipe.
        measured: what a meter or a trace found saved; None stops at the closed form.
        backend: "native" or "emulated"; see `saved`.

    Returns:
        The formula's sum, then signed terms with their reasons; terms of 0 bytes are left out. The
        total is the closed form's or the measurement's. Differences between the two are rows of
        the category unexplained.

    Raises:
        RecipeError: no such recipe.
        LedgerError: see `saved`.
    """
    start, end = formula_for(numbers, recipe), saved(numbers, recipe, backend)
    name = "formula without scores" if numbers.attention == "fused" else "formula"
    rows = [_row(name, Category.ACTIVATIONS, start.total, start.rows[0].reason)]
    for term in _TERMS:
        change = sum(row.bytes for row in end if term.ours(row))
        change -= start.where(term=term.formula).total
        rows.append(_row(term.term, term.category, change, term.reason))
    return Ledger(rows) + (_beyond(measured, end) if measured is not None else Ledger())


def between(before: Ledger, after: Ledger, name: str) -> Ledger:
    """The terms that lead from what one recipe saves to what another saves, in bytes.

    Args:
        before: the closed form of one recipe: `saved`.
        after: that of the other.
        name: of the first row, such as the one recipe's.
    """
    rows = [_row(name, Category.ACTIVATIONS, before.total, "")]
    for term in _TERMS:
        change = sum(row.bytes for row in after if term.ours(row))
        change -= sum(row.bytes for row in before if term.ours(row))
        rows.append(_row(term.term, term.category, change, term.rows))
    return Ledger(rows)


def _beyond(measured: Ledger, expected: Ledger) -> Ledger:
    """What was measured and not expected, and the reverse, as unexplained rows."""
    names = ("module", "operation", "dtype")
    difference = measured.project(*names) - expected.project(*names)
    return Ledger(
        Row(
            term=f"{row.module} {row.operation}".strip() or "the model",
            category=Category.UNEXPLAINED,
            bytes=row.bytes,
            module=row.module,
            operation=row.operation,
            dtype=row.dtype,
            lifetime=Lifetime.SAVED,
            stage=Stage.FORWARD,
            reason=f"measured minus expected, {row.category}",
        )
        for row in difference
    )


def _row(term: str, category: Category, size: int, reason: str) -> Row:
    return Row(
        term=term,
        category=category,
        bytes=size,
        lifetime=Lifetime.SAVED,
        stage=Stage.FORWARD,
        reason=reason,
    )
