"""Model states: bytes a parameter under each bookkeeping, and their shares under ZeRO and FSDP.

Under autocast every weight keeps 4 bytes, its gradient 4 and its moments 8. The other bookkeeping
with the same sum of 16, 2 + 2 + 8 + 4, stores 16-bit weights and gradients beside fp32 masters. The
idea is one: updates land in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from floatscope.errors import LedgerError, unknown
from floatscope.formats import FloatFormat
from floatscope.formats import format as format_called
from floatscope.memory.kept import way_of
from floatscope.memory.ledger import Category, Ledger, Lifetime, Row, Stage
from floatscope.memory.units import up
from floatscope.recipes.recipe import Recipe

Bytes = Fraction | int

SMALLEST_QUANTIZED = 4096
"""Elements below which 8-bit and 4-bit optimizers keep a tensor's state in full (torchao)."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Bytes of model state for each parameter."""

    name: str
    parameters: Bytes
    gradients: Bytes
    first_moment: Bytes
    second_moment: Bytes
    master: Bytes = 0
    other: Bytes = 0
    """Copies of the weights in a smaller format, kept between steps."""
    note: str = ""
    source: str

    @property
    def total(self) -> Bytes:
        return self.parameters + self.gradients + self.optimizer + self.other

    @property
    def optimizer(self) -> Bytes:
        """Moments and masters: ZeRO's K."""
        return self.first_moment + self.second_moment + self.master


def _quantized(bits: int, block: int) -> Fraction:
    """Bytes of one moment in `bits` with an fp32 scale for each block."""
    return Fraction(bits, 8) + Fraction(4, block)


ADAM_8BIT = 2 * _quantized(8, 256)
"""Both moments in 8 bits, blocks of 256: 2.03125 bytes a parameter (torchao, bitsandbytes)."""
ADAM_4BIT = 2 * _quantized(4, 128)
"""Both moments in 4 bits, blocks of 128: 1.0625 bytes a parameter (torchao)."""

_SMALL = f"tensors of fewer than {SMALLEST_QUANTIZED} elements keep fp32 moments"

# name, bytes of parameters, gradients, first and second moment, masters, other copies, source, note
_TABLE: tuple[tuple[str, Bytes, Bytes, Bytes, Bytes, Bytes, Bytes, str, str], ...] = (
    ("fp32", 4, 4, 4, 4, 0, 0,
     "Rajbhandari et al. 2020, ZeRO (arXiv 1910.02054)", ""),
    ("autocast", 4, 4, 4, 4, 0, 0,
     "torch.autocast; measured",
     "and 2 for each element of a cast matrix while the graph lives"),
    ("fp16-master", 2, 2, 4, 4, 4, 0,
     "ZeRO: K = 12; NVIDIA Apex, O2", ""),
    ("megatron-bf16", 2, 4, 4, 4, 4, 0,
     "Megatron-LM: 18, with the distributed optimizer 6 + 12 / d",
     "gradients are accumulated in fp32"),
    ("deepspeed-zero2", 2, 6, 4, 4, 4, 0,
     "DeepSpeed, stage_1_and_2.py; DeepSpeed#5099: 2 + 18 / N",
     "gradients in 16 bits and once more in fp32"),
    ("bf16-pure", 2, 2, 2, 2, 0, 0,
     "torch.optim.AdamW on bf16 weights; torchtune#389", ""),
    ("bf16-master", 2, 2, 4, 4, 4, 0,
     "measured",
     "14 between steps, where gradients are freed; 18 at the step with their fp32 copy"),
    ("adam-8bit", 4, 4, ADAM_8BIT / 2, ADAM_8BIT / 2, 0, 0,
     "torchao, optim/subclass_8bit.py", _SMALL),
    ("adam-4bit", 4, 4, ADAM_4BIT / 2, ADAM_4BIT / 2, 0, 0,
     "torchao, optim/subclass_4bit.py", _SMALL),
    ("one-moment", 4, 4, 4, 0, 0, 0,
     "EleutherAI cookbook",
     "SGD with momentum, Lion, Muon; 4 more with a master copy"),
    ("fp8-torchao", 4, 4, 4, 4, 0, 0,
     "torchao, float8_linear.py; ao#1102, ao#2262",
     "inputs and weights are saved in high precision: no byte less than without fp8"),
    ("fp8-te-row", 2, 2, 4, 4, 4, 1,
     "TransformerEngine documentation; TransformerEngine#1429", "one fp8 copy of each weight"),
    ("fp8-te-row-column", 2, 2, 4, 4, 4, 2,
     "TransformerEngine documentation; TransformerEngine#1429",
     "two fp8 copies of each weight, by rows and by columns"),
    ("fp8-lm", 0, 1, 1, 2, 2, 0,
     "Peng et al. 2023, FP8-LM (arXiv 2310.18313), O2",
     "the fp16 masters are the weights; scales are not counted"),
)  # fmt: skip

POLICIES: dict[str, Policy] = {
    name: Policy(
        name=name,
        parameters=parameters,
        gradients=gradients,
        first_moment=first,
        second_moment=second,
        master=master,
        other=other,
        source=source,
        note=note,
    )
    for name, parameters, gradients, first, second, master, other, source, note in _TABLE
}


def policy(name: str) -> Policy:
    """The bookkeeping called `name`.

    Raises:
        LedgerError: no such bookkeeping; the message offers the nearest name.
    """
    if name not in POLICIES:
        raise LedgerError(unknown("bookkeeping", str(name), POLICIES))
    return POLICIES[name]


def policy_for(recipe: Recipe) -> Policy:
    """The bookkeeping of a recipe on a device that has its formats, with Adam.

    Where plain Torch keeps weights as the recipe says, what is then measured; else every kind of
    state in the recipe's format for it, and Kahan's rests beside the weights.
    """
    way = way_of(recipe)
    if way != "storage":
        mixed = "fp32" if recipe.products == "fp32" else "autocast"
        return policy({"as made": mixed, "16 bits": "bf16-pure", "masters": "bf16-master"}[way])
    stored = recipe.stored
    weights, first, second = (_bytes_of(name) for name in (stored.weights, *stored.moments))
    return Policy(
        name=recipe.name,
        parameters=weights,
        gradients=_bytes_of(stored.gradients),
        first_moment=first,
        second_moment=second,
        master=_bytes_of(stored.master) if stored.master else 0,
        other=weights if stored.update == "kahan" else 0,
        source="the recipe's own formats",
    )


def _bytes_of(name: str) -> Fraction:
    """Bytes of one element of a float format."""
    form = format_called(name)
    assert isinstance(form, FloatFormat)
    return Fraction(form.width, 8)


# term, category, field of Policy, the ZeRO stage from which it is split, lifetime, stage
_PARTS = (
    ("weights", Category.PARAMETERS, "parameters", 3, Lifetime.RUN, Stage.BUILD),
    ("smaller copies of weights", Category.PARAMETERS, "other", 3, Lifetime.RUN, Stage.BUILD),
    ("gradients", Category.GRADIENTS, "gradients", 2, Lifetime.GRADIENT, Stage.BACKWARD),
    ("master weights", Category.MASTER, "master", 1, Lifetime.RUN, Stage.BUILD),
    ("first moment", Category.FIRST_MOMENT, "first_moment", 1, Lifetime.RUN, Stage.OPTIMIZER),
    ("second moment", Category.SECOND_MOMENT, "second_moment", 1, Lifetime.RUN, Stage.OPTIMIZER),
)


def states(
    bookkeeping: Policy | str,
    num_parameters: int,
    *,
    zero: int = 0,
    devices: int = 1,
    num_tensors: int = 0,
) -> Ledger:
    """Model states on each device, in bytes.

    Args:
        bookkeeping: bytes a parameter, or its name.
        num_parameters: of the whole model, or of a tensor- or pipeline-parallel part of it.
        zero: 0 keeps everything everywhere; 1 splits moments and masters over the devices; 2
            gradients too; 3, which is FSDP, parameters too. FSDP's gathered layers are not
            counted.
        devices: N, over which data parallelism splits.
        num_tensors: adds the 4-byte step counter that `torch.optim` keeps for each parameter
            tensor; 0 leaves it out.

    Returns:
        A row a kind of state; a device's share is rounded up to whole bytes.

    Raises:
        LedgerError: unknown bookkeeping or stage, or counts that are impossible.
    """
    if isinstance(bookkeeping, str):
        bookkeeping = policy(bookkeeping)
    if zero not in (0, 1, 2, 3):
        raise LedgerError(f"ZeRO has the stages 0, 1, 2 and 3, not {zero!r}.")
    if num_parameters < 0 or devices < 1 or num_tensors < 0:
        raise LedgerError("parameters and tensors cannot be negative, and a device must exist.")
    rows = []
    for term, category, field, split_from, lifetime, stage in _PARTS:
        each = getattr(bookkeeping, field)
        degree = devices if zero >= split_from else 1
        if each:
            size = up(Fraction(each) * num_parameters / degree)
            split = f"ZeRO-{zero} over {devices}; " if degree > 1 else ""
            reason = f"{split}{bookkeeping.source}"
            rows.append(Row(term=term, category=category, bytes=size, lifetime=lifetime,
                            stage=stage, reason=reason))  # fmt: skip
    if num_tensors:
        rows.append(
            Row(
                term="step counters",
                category=Category.OPTIMIZER,
                bytes=4 * num_tensors,
                dtype="fp32",
                stage=Stage.OPTIMIZER,
                count=num_tensors,
                reason="torch.optim keeps one fp32 counter for each parameter tensor",
            )
        )
    return Ledger(rows)


def quantized_moments(sizes: list[int], each: Bytes) -> Fraction:
    """Bytes a parameter of both moments in few bits, small tensors kept in fp32.

    Args:
        sizes: elements of each parameter tensor.
        each: bytes a parameter where quantized: `ADAM_8BIT` or `ADAM_4BIT`.

    Raises:
        LedgerError: no parameters.
    """
    if not sum(sizes):
        raise LedgerError("there is no parameter to keep a state for.")
    held = sum((Fraction(each) if n >= SMALLEST_QUANTIZED else Fraction(8)) * n for n in sizes)
    return Fraction(held, 1) / sum(sizes)


def with_step_copy(bookkeeping: Policy) -> Policy:
    """The bookkeeping while a step holds 16-bit gradients' fp32 copies, the originals freed."""
    return replace(bookkeeping, gradients=4)
