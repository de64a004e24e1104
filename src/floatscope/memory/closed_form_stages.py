"""The exact memory of the laboratory's GPT in every stage of two steps, with AdamW.

What lives between steps and what is saved for backward (`closed_form.py`), and at the peaks the
logits, the loss's gradients and the optimizer's temporaries.
"""

from __future__ import annotations

from floatscope.errors import LedgerError
from floatscope.memory.closed_form import OUTSIDE, SIZES, GPTNumbers, covered, saved
from floatscope.memory.kept import Formats, way_of
from floatscope.memory.ledger import Category, Ledger, Lifetime, Row, Stage
from floatscope.recipes import recipe as recipe_called


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


def formats_for(recipe: str) -> Formats:
    """The dtypes of a recipe whose stages have a closed form, natively.

    Raises:
        RecipeError: no such recipe.
        LedgerError: it has none: weights in storage, or operands of their own, whose copies the
            emulation keeps.
    """
    known = recipe_called(recipe)
    if known.operands is not None or way_of(known) == "storage":
        raise LedgerError(f"the stages of {recipe} have no closed form; trace or measure it.")
    return covered(recipe)


def _keeps_gradients(recipe: str) -> bool:
    """Whether gradients outlive the update; masters take them over and drop them."""
    return way_of(recipe_called(recipe)) != "masters"


def states(numbers: GPTNumbers, recipe: str = "fp32") -> Ledger:
    """Weights, gradients, masters, AdamW's moments and its step counters, tensor by tensor.

    16 bytes a parameter where weights are fp32, 8 where all is of 16 bits, 16 with masters, and 4 a
    tensor.

    Raises:
        RecipeError: no such recipe.
        LedgerError: see `formats_for`.
    """
    f = formats_for(recipe)
    parts = [
        ("weight", Category.PARAMETERS, f.weights, Lifetime.RUN, Stage.BUILD),
        ("weight", Category.GRADIENTS, f.weights, Lifetime.GRADIENT, Stage.BACKWARD),
        ("weight: master", Category.MASTER, f.optimizer, Lifetime.RUN, Stage.BUILD),
        ("weight: exp_avg", Category.FIRST_MOMENT, f.optimizer, Lifetime.RUN, Stage.OPTIMIZER),
        ("weight: exp_avg_sq", Category.SECOND_MOMENT, f.optimizer, Lifetime.RUN, Stage.OPTIMIZER),
        ("weight: step", Category.OPTIMIZER, "fp32", Lifetime.RUN, Stage.OPTIMIZER),
    ]
    return Ledger(
        Row(term=term, category=category,
            bytes=SIZES[dtype] * (1 if term.endswith("step") else size),
            module=name.removesuffix(".weight"), dtype=dtype, lifetime=lifetime, stage=stage,
            count=1)
        for term, category, dtype, lifetime, stage in parts
        if f.weights != f.optimizer or category is not Category.MASTER
        for name, size in parameters(numbers).items()
    )  # fmt: skip


def buffers(numbers: GPTNumbers, dtype: str = "fp32") -> Ledger:
    """Each layer's own RoPE tables (2 T H/2) and mask of the future (T T, bool), in bytes."""
    t, half = numbers.context, numbers.width // numbers.num_heads // 2
    tables = (("cos_TH", dtype, t * half), ("sin_TH", dtype, t * half))
    return Ledger(
        Row(term=term, category=Category.BUFFERS, bytes=SIZES[kind] * elements,
            module=f"blocks.{layer}.attention", dtype=kind, count=1, reason="one a layer")
        for layer in range(numbers.num_layers)
        for term, kind, elements in (*tables, ("future_TT", "bool", t * t))
    )  # fmt: skip


def batch(numbers: GPTNumbers) -> Ledger:
    """Ids and targets, 8 bytes a token each."""
    row = Row(term="batch", category=Category.INPUT, bytes=8 * numbers.tokens, dtype="int64",
              count=1, reason="B T ids, B T targets")  # fmt: skip
    return Ledger([row, row])


def live(numbers: GPTNumbers, recipe: str, stage: Stage) -> Ledger:
    """What is allocated when a stage has ended, in bytes.

    Between forward and backward the loss itself is alive too; under loss scaling, the scale and its
    counter from the first backward on.

    Raises:
        RecipeError: no such recipe.
        LedgerError: see `formats_for` and `saved`.
    """
    stage, f, every = Stage(stage), formats_for(recipe), states(numbers, recipe)
    after = list(Stage)[: list(Stage).index(stage) + 1]
    held = every.where(stage=Stage.BUILD) + buffers(numbers, f.weights) + batch(numbers)
    kept = (Stage.OPTIMIZER,) if _keeps_gradients(recipe) else ()
    if stage in (Stage.BACKWARD, Stage.BACKWARD_2, *kept):
        held += every.where(category=Category.GRADIENTS)
    if Stage.OPTIMIZER in after:
        held += every.where(stage=Stage.OPTIMIZER)
    if Stage.BACKWARD in after and recipe_called(recipe).loss_scaling:
        held += Ledger([_scaling("loss scale", "fp32"), _scaling("loss scale", "int32")])
    if stage in (Stage.FORWARD, Stage.FORWARD_2):
        waiting = saved(numbers, recipe)
        held += waiting - waiting.where(category=Category.INPUT)
        held += Ledger([_loss_row("loss", f.loss, 1, Stage.FORWARD, Lifetime.SAVED)])
    return held


def peak(numbers: GPTNumbers, recipe: str, stage: Stage) -> Ledger:
    """The most that is allocated during a stage, in bytes, where the loss is the peak of a step.

    It is wherever B T V outweighs what the rest of backward holds at once; `trace` says exactly.
    In forward the logits, and under autocast their fp32 copy, stand beside the log-softmax that is
    saved. In backward the gradients of the loss and of the log-softmax, both B T V, stand beside
    everything that forward saved. AdamW, tensor by tensor, needs two of the largest; masters need
    fp32 copies of all gradients.

    Raises:
        LedgerError: the stage is build, whose temporaries have no closed form; or see `live`.
        RecipeError: no such recipe.
    """
    stage = Stage(stage)
    if stage is Stage.BUILD:
        raise LedgerError("the temporaries of building have no closed form; trace them.")
    if stage is Stage.ZERO_GRAD:
        return live(numbers, recipe, Stage.OPTIMIZER)
    if stage is Stage.OPTIMIZER:
        return live(numbers, recipe, stage) + _updating(numbers, recipe)
    if stage in (Stage.FORWARD, Stage.FORWARD_2):
        return live(numbers, recipe, stage) + _ending_forward(numbers, formats_for(recipe), stage)
    before = Stage.FORWARD if stage is Stage.BACKWARD else Stage.FORWARD_2
    return live(numbers, recipe, before) + _beginning_backward(numbers, recipe, stage)


def _updating(numbers: GPTNumbers, recipe: str) -> Ledger:
    f, sizes = formats_for(recipe), parameters(numbers)

    def made(term: str, elements: int, count: int, reason: str) -> Row:
        return Row(term=term, category=Category.OPTIMIZER_TEMPORARIES,
                   bytes=SIZES[f.optimizer] * elements, dtype=f.optimizer,
                   lifetime=Lifetime.TEMPORARY, stage=Stage.OPTIMIZER, count=count,
                   reason=reason)  # fmt: skip

    reason = "two of the largest tensor's size"
    rows = [made("temporaries of AdamW", 2 * max(sizes.values()), 2, reason)]
    if not _keeps_gradients(recipe):
        reason = "made at the step; the gradients themselves are freed"
        rows.append(made("copies of gradients", sum(sizes.values()), len(sizes), reason))
    if recipe_called(recipe).loss_scaling:  # was an infinity found?
        rows.append(_scaling("loss scale", "fp32"))
    return Ledger(rows)


def _ending_forward(numbers: GPTNumbers, f: Formats, stage: Stage) -> Ledger:
    logits = numbers.tokens * numbers.vocab_size
    rows = []
    if f.casts or f.products == f.loss:  # else the model returns the copy in their stead
        rows.append(_loss_row("logits", f.products, logits, stage))
    if f.products != f.loss:
        rows.append(_loss_row("fp32 copy of logits", f.loss, logits, stage))
    return Ledger(rows)


def _beginning_backward(numbers: GPTNumbers, recipe: str, stage: Stage) -> Ledger:
    f, logits = formats_for(recipe), numbers.tokens * numbers.vocab_size
    rows = [_loss_row(f"gradient of {of}", f.loss, logits, stage) for of in ("loss", "log-softmax")]
    if recipe_called(recipe).loss_scaling:
        rows.append(_loss_row("scaled loss", "fp32", 1, stage))
        if stage is Stage.BACKWARD:
            rows += [_scaling("loss scale", "fp32"), _scaling("loss scale", "int32")]
    return Ledger(rows)


def _loss_row(
    term: str, dtype: str, elements: int, stage: Stage, lifetime: Lifetime = Lifetime.TEMPORARY
) -> Row:
    return Row(term=term, category=Category.LOSS, bytes=SIZES[dtype] * elements, module=OUTSIDE,
               dtype=dtype, lifetime=lifetime, stage=stage, count=1)  # fmt: skip


def _scaling(term: str, dtype: str) -> Row:
    return Row(term=term, category=Category.OPTIMIZER, bytes=4, module="(optimizer)", dtype=dtype,
               stage=Stage.BACKWARD, count=1, reason="torch.amp.GradScaler")  # fmt: skip
