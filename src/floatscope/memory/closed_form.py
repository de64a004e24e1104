"""The exact memory of the laboratory's GPT, from its numbers alone.

Every tensor that autograd keeps on a CPU from forward to backward has a row, with the module and
the Torch function that save it, so that it can be set beside a measurement row by row. A tensor
that several functions save is listed where it is saved first. Parameters and buffers are saved too,
but they are there anyway and have rows of their own.

Symbols in the reasons: B = batch, T = tokens in a sequence, D = width, N = heads, H = D / N,
F = width of the feed-forward, V = vocabulary. Rules of Torch 2.13 on a CPU: `rms_norm` is composed
of elementary operations in fp32, autocast runs softmax in 16 bits and the loss in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from floatscope.errors import LedgerError, unknown
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


def saved(numbers: GPTNumbers, recipe: str) -> Ledger:
    """What autograd keeps between forward and backward, in bytes.

    Args:
        numbers: shape of model and batch.
        recipe: name of a recipe whose parameters are fp32.

    Raises:
        RecipeError: no such recipe.
        LedgerError: fused attention with heads of width 2, which Torch does not fuse: RoPE's halves
            of width 1 come out in an order of elements that the kernel does not take.
    """
    narrow = recipe_called(recipe).products
    if numbers.attention == "fused" and numbers.width == 2 * numbers.num_heads:
        raise LedgerError("fused attention with heads of width 2 has no closed form; trace it.")
    rows = list(_inputs(numbers))
    for layer in range(numbers.num_layers):
        block = f"blocks.{layer}"
        rows += _norm(numbers, f"{block}.attention_norm")
        rows += _attention(numbers, narrow, f"{block}.attention")
        rows += _norm(numbers, f"{block}.ff_norm")
        rows += _feed_forward(numbers, narrow, f"{block}.ff")
    rows += _norm(numbers, "norm")
    rows += _product_input(numbers, narrow, "", numbers.vocab_size)
    rows += _loss(numbers)
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
        ("norm input", stream, "B T D of the residual stream, which is fp32 under every recipe"),
        ("1 / rms", n.tokens, "B T, the result of rsqrt"),
        ("normalized", stream, "B T D; the gain's gradient needs it (not kept by fused kernels)"),
    ):
        yield _Saved(term, module, "rms_norm", "fp32", elements, reason)


def _product_input(n: GPTNumbers, narrow: str, module: str, outputs: int) -> Iterator[_Saved]:
    """What a linear layer on a norm's output saves: itself in fp32, else copies in 16 bits."""
    stream = n.tokens * n.width
    if narrow == "fp32":
        shared = "B T D; all layers that read it save the same tensor"
        yield _Saved("norm output", module, "linear", narrow, stream, shared)
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


def _attention(n: GPTNumbers, narrow: str, module: str) -> Iterator[_Saved]:
    stream = n.tokens * n.width
    for layer in ("q", "k", "v") if narrow != "fp32" else ("q",):
        yield from _product_input(n, narrow, f"{module}.{layer}", n.width)
    if narrow != "fp32":
        yield _Saved(
            "cast of RoPE table", module, "mul", narrow, n.context * n.width // n.num_heads // 2,
            "T H/2, cosines and sines, once for q and once for k", Category.CASTS, 4,
        )  # fmt: skip
    if n.attention == "fused":
        yield from _fused(n, narrow, module)
    else:
        yield from _materialized(n, narrow, module)
    # A single head or token needs no reordering, so fused attention's output is not copied.
    if n.attention == "materialized" or (n.num_heads > 1 and n.context > 1):
        reason = "B T D, the heads' outputs side by side, copied out of their transposed order"
        yield _Saved("attention output", f"{module}.o", "linear", narrow, stream, reason)
    if narrow != "fp32":
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


def _feed_forward(n: GPTNumbers, narrow: str, module: str) -> Iterator[_Saved]:
    inner = n.tokens * n.ff_width
    for layer in ("gate", "up") if narrow != "fp32" else ("gate",):
        yield from _product_input(n, narrow, f"{module}.{layer}", n.ff_width)
    yield _Saved("gate", module, "silu", narrow, inner, "B T F; silu's gradient needs its input")
    yield _Saved("silu(gate)", module, "mul", narrow, inner, "B T F, one factor")
    yield _Saved("up", module, "mul", narrow, inner, "B T F, the other factor")
    yield _Saved("gated", f"{module}.down", "linear", narrow, inner, "B T F, input of down")
    if narrow != "fp32":
        yield _cast_weight(f"{module}.down", narrow, n.width * n.ff_width)


def _loss(n: GPTNumbers) -> Iterator[_Saved]:
    loss, call = Category.LOSS, "cross_entropy"
    reason = "B T V, fp32 under every recipe: autocast runs the loss in fp32"
    yield _Saved("log-softmax", OUTSIDE, call, "fp32", n.tokens * n.vocab_size, reason, loss)
    reason = "B T targets of 8 bytes"
    yield _Saved("targets", OUTSIDE, call, "int64", n.tokens, reason, Category.INPUT)
    yield _Saved("total weight", OUTSIDE, call, "fp32", 1, "what the mean divides by", loss)


def parameters(numbers: GPTNumbers) -> dict[str, int]:
    """Elements of each parameter tensor, by its name in the model."""
    d, f = numbers.width, numbers.ff_width
    sizes = {"embedding.weight": numbers.vocab_size * d}
    for layer in range(numbers.num_layers):
        block = f"blocks.{layer}"
        sizes[f"{block}.attention_norm.weight"] = d
        sizes |= {f"{block}.attention.{name}.weight": d * d for name in "qkvo"}
        sizes[f"{block}.ff_norm.weight"] = d
        sizes |= {f"{block}.ff.{name}.weight": d * f for name in ("gate", "up", "down")}
    return sizes | {"norm.weight": d}


_STATES = (
    ("weight", Category.PARAMETERS, Lifetime.RUN, Stage.BUILD),
    ("weight", Category.GRADIENTS, Lifetime.GRADIENT, Stage.BACKWARD),
    ("weight: exp_avg", Category.FIRST_MOMENT, Lifetime.RUN, Stage.OPTIMIZER),
    ("weight: exp_avg_sq", Category.SECOND_MOMENT, Lifetime.RUN, Stage.OPTIMIZER),
    ("weight: step", Category.OPTIMIZER, Lifetime.RUN, Stage.OPTIMIZER),
)


def states(numbers: GPTNumbers) -> Ledger:
    """Weights, gradients, AdamW's moments and its step counters, all fp32, tensor by tensor.

    16 bytes a parameter and 4 a tensor, under every recipe that keeps parameters in fp32.
    """
    return Ledger(
        Row(term=term, category=category, bytes=4 * (1 if term.endswith("step") else size),
            module=name.removesuffix(".weight"), dtype="fp32", lifetime=lifetime, stage=stage,
            count=1)
        for term, category, lifetime, stage in _STATES
        for name, size in parameters(numbers).items()
    )  # fmt: skip


def buffers(numbers: GPTNumbers) -> Ledger:
    """Each layer's own RoPE tables (2 T H/2, fp32) and mask of the future (T T, bool), in bytes."""
    t, half = numbers.context, numbers.width // numbers.num_heads // 2
    tables = (("cos_TH", "fp32", t * half), ("sin_TH", "fp32", t * half))
    return Ledger(
        Row(term=term, category=Category.BUFFERS, bytes=SIZES[dtype] * elements,
            module=f"blocks.{layer}.attention", dtype=dtype, count=1, reason="one a layer")
        for layer in range(numbers.num_layers)
        for term, dtype, elements in (*tables, ("future_TT", "bool", t * t))
    )  # fmt: skip


def batch(numbers: GPTNumbers) -> Ledger:
    """Ids and targets, 8 bytes a token each."""
    row = Row(term="batch", category=Category.INPUT, bytes=8 * numbers.tokens, dtype="int64",
              count=1, reason="B T ids, B T targets")  # fmt: skip
    return Ledger([row, row])


def live(numbers: GPTNumbers, recipe: str, stage: Stage) -> Ledger:
    """What is allocated when a stage has ended, in bytes, with AdamW as the optimizer.

    Between forward and backward the loss itself, 4 bytes, is alive too; under loss scaling, the
    scale and its counter from the first backward on.

    Raises:
        RecipeError: no such recipe.
    """
    stage = Stage(stage)
    after = list(Stage)[: list(Stage).index(stage) + 1]
    held = states(numbers).where(stage=Stage.BUILD) + buffers(numbers) + batch(numbers)
    if stage in (Stage.BACKWARD, Stage.OPTIMIZER, Stage.BACKWARD_2):
        held += states(numbers).where(category=Category.GRADIENTS)
    if Stage.OPTIMIZER in after:
        held += states(numbers).where(stage=Stage.OPTIMIZER)
    if Stage.BACKWARD in after and recipe_called(recipe).loss_scaling:
        held += Ledger([_scaling("loss scale", "fp32"), _scaling("loss scale", "int32")])
    if stage in (Stage.FORWARD, Stage.FORWARD_2):
        kept = saved(numbers, recipe)
        held += kept - kept.where(category=Category.INPUT)
        held += Ledger([_loss_row("loss", "fp32", 1, Stage.FORWARD, Lifetime.SAVED)])
    return held


def peak(numbers: GPTNumbers, recipe: str, stage: Stage) -> Ledger:
    """The most that is allocated during a stage, in bytes, where the loss is the peak of a step.

    It is wherever B T V outweighs what the rest of backward holds at once; `trace` says exactly.
    In forward the logits, and under a 16-bit recipe their fp32 copy, stand beside the log-softmax
    that is saved. In backward the gradients of the loss and of the log-softmax, both B T V in fp32,
    stand beside everything that forward saved. AdamW, tensor by tensor, needs two of the largest.

    Raises:
        LedgerError: the stage is build, whose temporaries have no closed form.
        RecipeError: no such recipe.
    """
    stage = Stage(stage)
    narrow, scaling = recipe_called(recipe).products, recipe_called(recipe).loss_scaling
    logits = numbers.tokens * numbers.vocab_size
    if stage is Stage.BUILD:
        raise LedgerError("the temporaries of building have no closed form; trace them.")
    if stage is Stage.ZERO_GRAD:
        return live(numbers, recipe, Stage.OPTIMIZER)
    if stage is Stage.OPTIMIZER:
        largest = 4 * max(parameters(numbers).values())
        row = Row(term="temporaries of AdamW", category=Category.OPTIMIZER_TEMPORARIES,
                  bytes=2 * largest, dtype="fp32", lifetime=Lifetime.TEMPORARY, stage=stage,
                  count=2, reason="two of the largest tensor's size")  # fmt: skip
        found = [_scaling("loss scale", "fp32")] if scaling else []  # found an infinity?
        return live(numbers, recipe, stage) + Ledger([row, *found])
    if stage in (Stage.FORWARD, Stage.FORWARD_2):
        parts = [_loss_row("logits", narrow, logits, stage)]
        if narrow != "fp32":
            parts.append(_loss_row("fp32 copy of logits", "fp32", logits, stage))
        return live(numbers, recipe, stage) + Ledger(parts)
    before = Stage.FORWARD if stage is Stage.BACKWARD else Stage.FORWARD_2
    parts = [
        _loss_row(f"gradient of {of}", "fp32", logits, stage) for of in ("loss", "log-softmax")
    ]
    if scaling:
        parts.append(_loss_row("scaled loss", "fp32", 1, stage))
    if scaling and stage is Stage.BACKWARD:
        parts += [_scaling("loss scale", "fp32"), _scaling("loss scale", "int32")]
    return live(numbers, recipe, before) + Ledger(parts)


def _loss_row(
    term: str, dtype: str, elements: int, stage: Stage, lifetime: Lifetime = Lifetime.TEMPORARY
) -> Row:
    return Row(term=term, category=Category.LOSS, bytes=SIZES[dtype] * elements, module=OUTSIDE,
               dtype=dtype, lifetime=lifetime, stage=stage, count=1)  # fmt: skip


def _scaling(term: str, dtype: str) -> Row:
    return Row(term=term, category=Category.OPTIMIZER, bytes=4, module="(optimizer)", dtype=dtype,
               stage=Stage.BACKWARD, count=1, reason="torch.amp.GradScaler")  # fmt: skip
