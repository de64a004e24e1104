"""What lies between a gradient and the same in fp64, parameter by parameter and in all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from floatscope.lab.compare.records import Difference


@dataclass(frozen=True)
class _Sums:
    """Sums over elements, which add up over parameters; the first four in fp64."""

    product: float
    given: float
    exact: float
    difference: float
    elements: int
    nonzero: int
    sign_flips: int
    zeros: int
    nonfinite: int


def differences(
    gradients: Mapping[str, Tensor], exact: Mapping[str, Tensor]
) -> tuple[Difference, tuple[Difference, ...]]:
    """The difference of the whole gradient, and of each parameter in the order of `exact`.

    Args:
        gradients: by parameter, in any float dtype; one that is absent counts as all zero.
        exact: the same in fp64, finite.
    """
    sums = {name: _sums(gradients.get(name), reference) for name, reference in exact.items()}
    return _named("", sums.values()), tuple(_named(name, [s]) for name, s in sums.items())


def _sums(gradient: Tensor | None, exact: Tensor) -> _Sums:
    given = torch.zeros_like(exact) if gradient is None else gradient.double()
    is_there = exact != 0
    return _Sums(
        product=float((given * exact).sum()),
        given=float(given.square().sum()),
        exact=float(exact.square().sum()),
        difference=float((given - exact).square().sum()),
        elements=exact.numel(),
        nonzero=int(is_there.sum()),
        sign_flips=int((given.sign() * exact.sign() < 0).sum()),
        zeros=int(((given == 0) & is_there).sum()),
        nonfinite=given.numel() - int(given.isfinite().sum()),
    )


def _named(name: str, parts: Iterable[_Sums]) -> Difference:
    parts = list(parts)
    is_finite = not any(p.nonfinite for p in parts)

    def norm(field: str) -> float:
        return math.sqrt(math.fsum(getattr(p, field) for p in parts)) if is_finite else math.nan

    norms = norm("given") * norm("exact")
    return Difference(
        name=name,
        elements=sum(p.elements for p in parts),
        nonzero=sum(p.nonzero for p in parts),
        cosine=math.fsum(p.product for p in parts) / norms if is_finite and norms else math.nan,
        error=norm("difference") / norm("exact") if norm("exact") else math.nan,
        sign_flips=sum(p.sign_flips for p in parts),
        zeros=sum(p.zeros for p in parts),
        nonfinite=sum(p.nonfinite for p in parts),
    )
