"""Does a model fit: model states, and a standard transformer's activations, on each device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from fractions import Fraction

from floatscope.errors import LedgerError, unknown
from floatscope.memory.formula import (
    Parallel,
    Recompute,
    Transformer,
    activations,
    around_the_blocks,
)
from floatscope.memory.ledger import Ledger
from floatscope.memory.states import POLICIES, Policy, policy, policy_for, states
from floatscope.memory.units import GB, GIB, MIB, up
from floatscope.recipes.catalogue import CATALOGUE

_COUNTS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_SIZES = {"MB": 10**6, "GB": GB, "TB": 10**12, "MIB": MIB, "GIB": GIB, "TIB": 2**40}
_NUMBER = r"(\d+(?:\.\d+)?(?:e\+?\d+)?)"
MOST = 10**18
"""Largest count that is believed."""


def count(text: str) -> int:
    """A number of parameters: "27.8B", "350M", "7e9" or "3688704".

    Raises:
        LedgerError: it is none, below 1 or beyond 1e18.
    """
    found = re.fullmatch(_NUMBER + r"\s*([KMBT]?)", text.strip(), re.IGNORECASE)
    if found is None:
        raise LedgerError(
            f"{text!r} is no number of parameters; write 27.8B, 350M, 7e9 or 3688704 "
            "(K, M, B, T are powers of 1000)."
        )
    value = Fraction(found[1]) * _COUNTS[found[2].upper()]
    if not 1 <= value <= MOST:
        raise LedgerError(f"{text!r}: parameters must lie between 1 and 1e18.")
    return round(value)


def size(text: str) -> int:
    """A memory size in bytes: "80GB" is 80e9, "80GiB" is 80 x 2^30.

    Raises:
        LedgerError: it is none, has no unit, is 0 or beyond 1e18.
    """
    found = re.fullmatch(_NUMBER + r"\s*([KMGT]i?B)", text.strip(), re.IGNORECASE)
    if found is None or found[2].upper() not in _SIZES:
        raise LedgerError(
            f"{text!r} is no size; name the unit: 80GB is 80e9 bytes, 80GiB is 80 x 2^30 (also MB, "
            "MiB, TB, TiB)."
        )
    value = Fraction(found[1]) * _SIZES[found[2].upper()]
    if not 1 <= value <= MOST:
        raise LedgerError(f"{text!r}: a size must lie between 1 byte and 1e18.")
    return round(value)


def shape(text: str) -> Transformer:
    """A transformer's shape: "layers=32,width=4096,heads=32,sequence=2048,batch=1,vocab=50257".

    Raises:
        LedgerError: a number is missing, unknown, given twice, or impossible.
    """
    names = [field.name for field in fields(Transformer)]
    given: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in names or not value.strip().isdecimal() or name in given:
            raise LedgerError(
                f"--shape: {part.strip()!r} is not one of {', '.join(f'{n}=NUMBER' for n in names)}"
                ", each once, separated by commas."
            )
        given[name] = int(value)
    missing = [n for n in names if n not in given and n != "vocab"]
    if missing:
        raise LedgerError(f"--shape lacks {', '.join(missing)}.")
    return Transformer(**given)


def bookkeeping(name: str) -> Policy:
    """Bytes a parameter under a recipe or a bookkeeping: "bf16-mixed" or "megatron-bf16".

    Raises:
        LedgerError: neither; the message offers the nearest.
    """
    if name in POLICIES:
        return policy(name)
    if name in CATALOGUE:
        return policy_for(CATALOGUE[name])
    raise LedgerError(
        unknown("recipe or bookkeeping", name, dict.fromkeys((*CATALOGUE, *POLICIES)))
    )


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to lay a model out over devices."""

    name: str
    devices: int
    states: Ledger
    """On each device."""
    activations: Ledger
    """On a device of the first pipeline stage; empty where no shape is given."""
    smallest: int | None
    """The fewest devices on which it fits when it is split so; None where no number of them is
    enough, or where activations, which are split otherwise, are counted too."""

    @property
    def total(self) -> int:
        """Bytes on a device."""
        return self.states.total + self.activations.total


def element_bytes(name: str) -> int:
    """Bytes of an activation under a recipe or a bookkeeping: 4 where products are fp32, else 2.

    A bookkeeping says nothing of products but for "fp32"; they are taken for 16 bits.
    """
    products = CATALOGUE[name].products if name in CATALOGUE else name
    return 4 if products == "fp32" else 2


def ways(
    held: Policy,
    num_parameters: int,
    capacity: int,
    devices: int = 8,
    of: Transformer | None = None,
    recompute: Recompute = "none",
    *,
    each: int = 2,
) -> Iterator[Way]:
    """Ways to lay a model out, first on one device.

    Args:
        held: bytes a parameter.
        num_parameters: of the whole model.
        capacity: bytes of a device.
        devices: over how many each way splits.
        of: the model's and micro-batch's shape, for activations by the standard block's formula;
            None leaves them out.
        recompute: "none", "selective" or "full".
        each: bytes of an activation's element: 2, or 4 for fp32, which doubles the formula.

    Tensor and pipeline parallelism divide the states evenly; FSDP's gathered layers, workspace and
    fragmentation are not counted.

    Raises:
        LedgerError: no device, or no such recomputation.
    """
    for name, degree, zero, parallel in _layouts(devices):
        share = up(Fraction(num_parameters, parallel.tensor * parallel.pipeline))
        kept = states(held, share, zero=zero, devices=degree if zero else 1)
        saved = Ledger()
        if of is not None:
            saved = activations(of, parallel, recompute, element_bytes=each)
            saved += around_the_blocks(of, parallel, element_bytes=each)
        fewest = None if of is not None else _fewest(held, num_parameters, capacity, zero, parallel)
        yield Way(name=name, devices=degree, states=kept, activations=saved, smallest=fewest)


def _layouts(n: int) -> Iterator[tuple[str, int, int, Parallel]]:
    if n < 1:
        raise LedgerError("a model needs at least one device.")
    alone = Parallel()
    yield "one device", 1, 0, alone
    if n == 1:
        return
    yield f"ZeRO-1 over {n}", n, 1, alone
    yield f"ZeRO-2 over {n}", n, 2, alone
    yield f"ZeRO-3 = FSDP over {n}", n, 3, alone
    yield f"tensor parallel {n}", n, 0, Parallel(tensor=n)
    yield f"tensor + sequence parallel {n}", n, 0, Parallel(tensor=n, sequence=True)
    yield f"pipeline parallel {n}", n, 0, Parallel(pipeline=n)


def _fewest(
    held: Policy, num_parameters: int, capacity: int, zero: int, parallel: Parallel
) -> int | None:
    """The smallest N with (unsplit + split / N) bytes a parameter within the capacity."""
    if zero in (1, 2):
        one = states(held, num_parameters)
        most = states(held, num_parameters, zero=zero, devices=num_parameters)
        fixed = most.total
        if fixed >= capacity:
            return None
        return max(1, up(Fraction(one.total - fixed, capacity - fixed)))
    if zero == 0 and parallel == Parallel():
        return 1 if states(held, num_parameters).total <= capacity else None
    return max(1, up(Fraction(states(held, num_parameters).total, capacity)))
