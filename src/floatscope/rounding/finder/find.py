"""The disagreement finder: the smallest inputs on which two quantizers differ, and why.

    disagreements(lambda x: x.to(torch.float8_e4m3fn).float(), "ml_dtypes", "e4m3fn", x=weights)

Nothing is sampled that can be listed: the inputs follow from the format. Random inputs do not find
what happens at a tie, at the largest value or in a block of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from floatscope.errors import FormatError
from floatscope.formats import BlockFormat, Format
from floatscope.formats import format as format_called
from floatscope.rounding import denormals
from floatscope.rounding.finder.block_causes import block_kinds
from floatscope.rounding.finder.causes import KINDS, Kind, differ, scalar_kinds
from floatscope.rounding.finder.findings import Case, Disagreements, Number, Raised, Share, by_kind
from floatscope.rounding.finder.probe_blocks import block_probes, rows_are_independent
from floatscope.rounding.finder.probe_inputs import scalar_probes
from floatscope.rounding.finder.quantizers import Named, Quantizer, Ran, named, run

PIECE = 1 << 21
"""Elements of the caller's tensor that are compared at a time."""
MINOR: tuple[Kind, ...] = ("sign of zero", "last bits")
"""Classes that an input of several blocks has only if no other applies."""


def disagreements(
    f: Quantizer, g: Quantizer, form: Format | str, x: Tensor | None = None
) -> Disagreements:
    """Find the smallest inputs on which two quantizers to a format differ, class by class.

    NaN equals NaN; 0 and -0 differ. The inputs tried are `scalar_probes` or `block_probes`.

    Args:
        f: a function from an fp32 CPU tensor to the rounded values in the same shape and any
            floating dtype; or rules, or their name ("standard", "torch-2.13", ...), for `round_to`.
            For block formats the function gets two dimensions: rows that do not see one another,
            or, where scales span rows, one tensor at a time; the name "standard" is `block_round`.
        g: the other one.
        form: the format or its name.
        x: a tensor whose affected share is wanted, taken in fp32.

    Returns:
        The cases, smallest first, and the share. An input on which one of the two raises is a case;
        where both raise, they agree. Every such input costs calls of its own.

    Raises:
        FormatError: an unknown format, rules that do not fit it, a quantizer that raises on every
            input or whose results have another shape.
    """
    form = format_called(form) if isinstance(form, str) else form
    pair = named(f, g, form)
    is_block = isinstance(form, BlockFormat)
    tried = _compare(pair, block_probes(form) if is_block else scalar_probes(form), form)
    for quantizer, ran in zip(pair, (tried.f, tried.g), strict=True):
        if len(ran.errors) == len(tried.x):
            raise FormatError(f"{quantizer.name} raises on every input: {ran.errors[0]}")
    with denormals.kept():
        cases = _cases(tried)
    counts = [sum(case.kind == kind for case in cases) for kind in KINDS]
    return Disagreements(
        form=form.name,
        names=(pair[0].name, pair[1].name),
        cases=tuple(cases),
        num_tried=len(tried.x),
        num_different=by_kind(counts),
        share=None if x is None else _share(pair, x, form),
    )


@dataclass(frozen=True)
class _Compared:
    """Two quantizers on inputs stacked along the first dimension."""

    x: Tensor
    """Inputs, in fp64."""
    f: Ran
    g: Ran
    different: Tensor
    """Which elements differ."""
    kinds: Tensor
    """Their classes, by place among `KINDS`; undefined elsewhere."""


def _compare(pair: tuple[Named, Named], x: Tensor, form: Format) -> _Compared:
    alone = isinstance(form, BlockFormat) and not rows_are_independent(form)
    f, g = (run(quantizer, x, one_at_a_time=alone) for quantizer in pair)
    with denormals.kept():
        x = x.double()
        raised = (f.raised ^ g.raised).view(-1, *[1] * (x.dim() - 1)).expand(x.shape)
        different = differ(f.values, g.values) | raised
        kinds = torch.zeros(x.shape, dtype=torch.int8)
        if isinstance(form, BlockFormat):
            where = different.flatten(1).any(1)
            given = (x[where], f.values[where], g.values[where], raised[where])
            kinds[where] = block_kinds(*given, form)
        else:
            where = different
            given = (x[where], f.values[where], g.values[where], raised[where])
            kinds[where] = scalar_kinds(*given, form)
    return _Compared(x, f, g, different, kinds)


def _cases(compared: _Compared) -> list[Case]:
    """The inputs that differ, by class and then by magnitude, the positive one of two first."""
    x, different = compared.x, compared.different.reshape(len(compared.x), -1)
    sizes = x.abs().nan_to_num(0, math.inf).reshape(len(x), -1).sum(1)
    found = []
    for i in different.any(1).nonzero().flatten().tolist():
        kinds = compared.kinds[i].reshape(-1)[different[i]].tolist()
        kind = next((kind for kind in kinds if KINDS[kind] not in MINOR), kinds[0])
        case = _case(KINDS[kind], i, compared)
        is_negative = bool(x[i].reshape(-1)[different[i]][0].signbit())
        found.append(((kind, float(sizes[i]), int(x[i].count_nonzero()), is_negative), case))
    return [case for _, case in sorted(found, key=itemgetter(0))]


def _case(kind: Kind, i: int, compared: _Compared) -> Case:
    rans = (compared.f, compared.g)
    tensors = [compared.x[i], *(ran.values[i] for ran in rans if i not in ran.errors)]
    used = torch.stack([(t != 0) | t.signbit() for t in tensors]).any(0).reshape(-1).nonzero()
    length = int(used.max()) + 1 if len(used) else 1

    def number(values: Tensor) -> Number:
        return tuple(values.reshape(-1)[:length].tolist()) if values.dim() else float(values)

    results = [Raised(ran.errors[i]) if i in ran.errors else number(ran.values[i]) for ran in rans]
    return Case(kind, number(compared.x[i]), *results)


def _share(pair: tuple[Named, Named], x: Tensor, form: Format) -> Share:
    counts = torch.zeros(len(KINDS), dtype=torch.int64)
    with denormals.kept():
        x = x.detach().cpu().float()
    for piece in _pieces(x, form) if x.numel() else ():
        compared = _compare(pair, piece, form)
        found = compared.kinds[compared.different].long()
        counts += torch.bincount(found, minlength=len(KINDS))
    return Share(x.numel(), int(counts.sum()), by_kind(counts.tolist()))


def _pieces(x: Tensor, form: Format) -> Iterator[Tensor]:
    """A tensor as inputs stacked along the first dimension, not too many at once."""
    if not isinstance(form, BlockFormat):
        yield from x.reshape(-1).split(PIECE)
        return
    rows = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    if rows_are_independent(form):
        yield from rows.split(max(PIECE // max(rows.shape[1], 1), 1))
    else:
        yield rows[None]
