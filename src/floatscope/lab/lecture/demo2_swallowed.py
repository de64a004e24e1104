"""Demonstration 2: two ways of being swallowed.

Between 2^e and 2^(e+1) a format's numbers are one ulp apart. What is added to a number and is less
than half an ulp is rounded away: the sum stays where it was. A number that grows has growing ulps,
so (a) a long sum of small numbers stalls, at the first power of two whose ulp is at least twice the
addend; and (b) 1 + delta is 1 for every delta up to half of eps.

The remedies keep what would be lost: in a wider sum (fp32), in a second number (Kahan), by adding
what is of equal size (pairwise), or in the mean, by rounding up with the probability of the rest
(stochastic rounding).
"""

from __future__ import annotations

import torch
from torch import Tensor

from floatscope.lab.lecture.records import Added, Remedy, Swallowed
from floatscope.lab.lecture.sum_rows import remedy, sum_record
from floatscope.rounding import round_to

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FORMATS, NARROW = (*DTYPES,), ("fp16", "bf16")
INCREMENT, ADDITIONS = 1e-4, 10_000
DELTAS = (1e-2, 1e-3, 1e-4)
REPETITIONS = 64


def swallowed() -> Swallowed:
    """Both tables. Torch adds in the format itself: the exact sum, rounded once to nearest."""
    addends = {name: number(INCREMENT, name).to(DTYPES[name]) for name in FORMATS}
    in_fp32 = running_sums(torch.stack([addend.float() for addend in addends.values()]))
    own = {name: running_sums(addends[name]) for name in NARROW}
    wide = [remedy(name, "fp32", in_fp32[-1, FORMATS.index(name)]) for name in NARROW]
    return Swallowed(
        increment=INCREMENT,
        additions=ADDITIONS,
        sums=(
            sum_record("fp32", addends["fp32"], in_fp32[:, 0], ADDITIONS),
            *(sum_record(name, addends[name], own[name], ADDITIONS) for name in NARROW),
        ),
        remedies=(*wide, *(r for name in NARROW for r in remedies(name, addends[name]))),
        added=tuple(one_plus(delta, name) for delta in DELTAS for name in FORMATS),
    )


def number(value: float, form: str) -> Tensor:
    """A number as the format holds it."""
    return round_to(torch.tensor(value, dtype=torch.float64), form)


def running_sums(addend: Tensor) -> Tensor:
    """The sums after 0, 1, 2, ... additions in the addend's dtype, until nothing moves any more."""
    sums = [torch.zeros_like(addend)]
    for _ in range(ADDITIONS):
        sums.append(sums[-1] + addend)
        if torch.equal(sums[-1], sums[-2]):
            break  # and so it will be for ever
    return torch.stack(sums)


def remedies(form: str, addend: Tensor) -> list[Remedy]:
    """Everything in 16 bits, and yet not stalled."""
    total, excess = torch.zeros_like(addend), torch.zeros_like(addend)
    chance, exact = torch.zeros(REPETITIONS, dtype=torch.float64), addend.double()
    for n in range(ADDITIONS):
        corrected = addend - excess
        new = total + corrected
        total, excess = new, (new - total) - corrected  # both exact (Dekker 1971)
        chance = round_to(chance + exact, form, rounding="stochastic", key=n)
    parts = torch.nn.functional.pad(addend.expand(ADDITIONS), (0, 2**14 - ADDITIONS))
    while len(parts) > 1:
        parts = parts[0::2] + parts[1::2]
    return [
        remedy(form, "kahan", total),
        remedy(form, "pairwise", parts[0]),
        remedy(form, "stochastic", chance),
    ]


def one_plus(delta: float, form: str) -> Added:
    """1 + delta, and half of the distance from 1 to the next number."""
    result = round_to(1 + number(delta, form), form)
    next_up = round_to(number(1.0, form), form) + torch.finfo(torch.float64).eps
    ulp = round_to(next_up, form, rounding="up") - 1
    return Added(format=form, delta=delta, result=result.item(), half_ulp=ulp.item() / 2)
