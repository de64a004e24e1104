"""The exact memory of the laboratory's GPT, from its numbers alone.

Every tensor that autograd keeps on a CPU from forward to backward has a row, with the module and
the Torch function that save it, so that it can be set beside a measurement row by row. A tensor
that several functions save is listed where it is saved first. Parameters and buffers are saved too,
but they are there anyway and have rows of their own.

Symbols in the reasons: B = batch, T = tokens in a sequence, D = width, N = heads, H = D / N,
F = width of the feed-forward, V = vocabulary. Rules of Torch 2.13 on a CPU: `rms_norm` is composed
of elementary operations in fp32, autocast runs softmax in 16 bits and the loss in fp32. Where the
model itself is of 16 bits, nothing is cast and the loss has 16 bits too. Operands of their own
(fp8, MX, tf32) are made below autograd and never saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from floatscope.errors import LedgerError, unknown
from floatscope.memory.kept import Formats, formats_of, way_of
from floatscope.memory.ledger import Category, Ledger, Lifetime, Row, Stage
from floatscope.recipes import recipe as recipe_called

ATTENTIONS = ("fused", "materialized")
SIZES = {"fp32": 4, "bf16": 2, "fp16": 2, "int64": 8, "bool": 1}
OUTSIDE = "(loss)"
"""Where rows belong that are saved outside the model."""


@dataclass(frozen=True, kw_only=True)
class GPTNumbers:
    """Shape of the laboratory's GPT and of its batch; sequences fill the context.

    Raises:
        LedgerError: a number below 1, heads that do not split the width into even parts, or an
            unknown kind of attention.
    """

    vocab_size: int = 2048
    context: int = 256
    num_layers: int = 4
    width: int = 256
    num_heads: int = 8
    ff_width: int = 688
    batch_size: int = 32
    attention: Literal["fused", "materialized"] = "fused"

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if f.name != "attention"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise LedgerError(f"{name} must be an integer of at least 1, not {value!r}.")
        if self.attention not in ATTENTIONS:
            raise LedgerError(unknown("attention", str(self.attention), ATTENTIONS))
        if self.width % (2 * self.num_heads):
            raise LedgerError(f"width {self.width} must split into {self.num_heads} even heads.")

    @property
    def tokens(self) -> int:
        """B T."""
        return self.batch_size * self.context

    @property
    def num_parameters(self) -> int:
        """V D + L (4 D D + 3 D F + 2 D) + D."""
        d = self.width
        block = 4 * d * d + 3 * d * self.ff_width + 2 * d
        return self.vocab_size * d + self.num_layers * block + d

    @property
    def num_tensors(self) -> int:
        """Parameter tensors: nine a layer, the embedding and the last gain."""
        return 9 * self.num_layers + 2


class _Saved(NamedTuple):
    term: str
    module: str
    operation: str
    dtype: str
    elements: int
    reason: str
    category: Category = Category.ACTIVATIONS
    copies: int = 1


def covered(recipe: str, backend: str = "native") -> Formats:
    """The dtypes of a recipe whose saved tensors have a closed form.

    Raises:
        RecipeError: no such recipe.
        LedgerError: weights in storage of their own dtype, which autocast treats in a way of its
            own.
    """
    known = recipe_called(recipe)
    if way_of(known, backend) == "storage" and backend == "native":
        raise LedgerError(f"{recipe} has no closed form; measure it.")
    return formats_of(known, backend)


def saved(numbers: GPTNumbers, recipe: str, backend: str = "native") -> Ledger:
    """What autograd keeps between forward and backward, in bytes.

    Args:
        numbers: shape of model and batch.
        recipe: name of a recipe.
        backend: "native" or "emulated", which decides how 16-bit weights are kept; products are
            saved alike.

    Raises:
        RecipeError: no such recipe.
        LedgerError: a recipe without a closed form; or fused attention with heads of width 2, which
            Torch does not fuse: RoPE's halves of width 1 come out in an order of elements that the
            kernel does not take.
    """
    formats = covered(recipe, backend)
    if numbers.attention == "fused" and numbers.width == 2 * numbers.num_heads:
        raise LedgerError("fused attention with heads of width 2 has no closed form; trace it.")
    rows = list(_inputs(numbers))
    for layer in range(numbers.num_layers):
        block = f"blocks.{layer}"
        rows += _norm(numbers, f"{block}.attention_norm")
        rows += _attention(numbers, formats, f"{block}.attention")
        rows += _norm(numbers, f"{block}.ff_norm")
        rows += _feed_forward(numbers, formats, f"{block}.ff")
    rows += _norm(numbers, "norm")
    rows += _product_input(numbers, formats, "", numbers.vocab_size)
    rows += _loss(numbers, formats)
    return Ledger(
        Row(
            term=row.term,
            category=row.category,
            bytes=row.copies * row.elements * SIZES[row.dtype],
            module=row.module,
            operation=row.operation,
            dtype=row.dtype,
            lifetime=Lifetime.SAVED,
            stage=Stage.FORWARD,
            count=row.copies,
            reason=row.reason,
        )
        for row in rows
    )


def _inputs(n: GPTNumbers) -> Iterator[_Saved]:
    yield _Saved(
        "ids", "embedding", "embedding", "int64", n.tokens,
        "B T ids of 8 bytes; the embedding's gradient is scattered to them", Category.INPUT,
    )  # fmt: skip


def _norm(n: GPTNumbers, module: str) -> Iterator[_Saved]:
    stream = n.tokens * n.width
    for term, elements, reason in (
        ("norm input", stream, "B T D of the residual stream, in fp32 or widened to it"),
        ("1 / rms", n.tokens, "B T, the result of rsqrt"),
        ("normalized", stream, "B T D; the gain's gradient needs it (not kept by fused kernels)"),
    ):
        yield _Saved(term, module, "rms_norm", "fp32", elements, reason)


def _product_input(n: GPTNumbers, f: Formats, module: str, outputs: int) -> Iterator[_Saved]:
    """What a linear layer on a norm's output saves: the output itself, or a cast copy of it."""
    stream, narrow = n.tokens * n.width, f.products
    if not f.casts:
        kind = Category.ACTIVATIONS if narrow == "fp32" else Category.CASTS
        shared = "B T D; all layers that read it save the same tensor"
        yield _Saved("norm output", module, "linear", narrow, stream, shared, kind)
        return
    yield _cast_weight(module, narrow, n.width * outputs)
    yield _Saved(
        "cast of norm output", module, "linear", narrow, stream,
        "B T D, one copy for each layer that reads it: autocast keeps copies of weights alone",
        Category.CASTS,
    )  # fmt: skip


def _cast_weight(module: str, narrow: str, elements: int) -> _Saved:
    reason = "autocast's copy of an fp32 matrix, kept by the graph"
    return _Saved("cast of weight", module, "linear", narrow, elements, reason, Category.CASTS)


def _attention(n: GPTNumbers, f: Formats, module: str) -> Iterator[_Saved]:
    stream, narrow = n.tokens * n.width, f.products
    for layer in ("q", "k", "v") if f.casts else ("q",):
        yield from _product_input(n, f, f"{module}.{layer}", n.width)
    if f.casts:
        yield _Saved(
            "cast of RoPE table", module, "mul", narrow, n.context * n.width // n.num_heads // 2,
            "T H/2, cosines and sines, once for q and once for k", Category.CASTS, 4,
        )  # fmt: skip
    yield from (_fused if n.attention == "fused" else _materialized)(n, narrow, module)
    # A single head or token needs no reordering, so fused attention's output is not copied.
    if n.attention == "materialized" or (n.num_heads > 1 and n.context > 1):
        reason = "B T D, the heads' outputs side by side, copied out of their transposed order"
        yield _Saved("attention output", f"{module}.o", "linear", narrow, stream, reason)
    if f.casts:
        yield _cast_weight(f"{module}.o", narrow, n.width * n.width)


def _fused(n: GPTNumbers, narrow: str, module: str) -> Iterator[_Saved]:
    call, stream = "scaled_dot_product_attention", n.tokens * n.width
    for term in ("rotated q", "rotated k", "v"):
        yield _Saved(term, module, call, narrow, stream, "B N T H")
    yield _Saved("fused output", module, call, narrow, stream, "B N T H; its gradient needs it")
    reason = "B N T, fp32 always; scores are computed again from it"
    yield _Saved("log-sum-exp", module, call, "fp32", n.tokens * n.num_heads, reason)


def _materialized(n: GPTNumbers, narrow: str, module: str) -> Iterator[_Saved]:
    stream = n.tokens * n.width
    scores = n.tokens * n.num_heads * n.context
    yield _Saved("rotated q", module, "matmul", narrow, stream, "B N T H")
    yield _Saved("rotated k", module, "matmul", narrow, stream, "B N T H")
    reason = "B N T T; softmax's gradient and the product with v need it"
    yield _Saved("softmax output", module, "softmax", narrow, scores, reason)
    yield _Saved("v", module, "matmul", narrow, stream, "B N T H, copied to its transposed order")


def _feed_forward(n: GPTNumbers, f: Formats, module: str) -> Iterator[_Saved]:
    inner, narrow = n.tokens * n.ff_width, f.products
    for layer in ("gate", "up") if f.casts else ("gate",):
        yield from _product_input(n, f, f"{module}.{layer}", n.ff_width)
    yield _Saved("gate", module, "silu", narrow, inner, "B T F; silu's gradient needs its input")
    yield _Saved("silu(gate)", module, "mul", narrow, inner, "B T F, one factor")
    yield _Saved("up", module, "mul", narrow, inner, "B T F, the other factor")
    yield _Saved("gated", f"{module}.down", "linear", narrow, inner, "B T F, input of down")
    if f.casts:
        yield _cast_weight(f"{module}.down", narrow, n.width * n.ff_width)


def _loss(n: GPTNumbers, f: Formats) -> Iterator[_Saved]:
    loss, call = Category.LOSS, "cross_entropy"
    reason = "B T V; autocast runs the loss in fp32, a model of 16 bits in its own dtype"
    yield _Saved("log-softmax", OUTSIDE, call, f.loss, n.tokens * n.vocab_size, reason, loss)
    reason = "B T targets of 8 bytes"
    yield _Saved("targets", OUTSIDE, call, "int64", n.tokens, reason, Category.INPUT)
    yield _Saved("total weight", OUTSIDE, call, f.loss, 1, "what the mean divides by", loss)
