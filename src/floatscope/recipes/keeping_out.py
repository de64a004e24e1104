"""Which parameters a recipe leaves alone: weights of products, and what is stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from floatscope.errors import RecipeError
from floatscope.recipes.formats_of import Kept, Stored


def kept_in_fp32(model: nn.Module, stored: Stored) -> frozenset[int]:
    """The parameters, by id, to which `stored` does not apply.

    Normalization layers are modules whose class is called so ("LayerNorm", "LlamaRMSNorm",
    "BatchNorm2d"); of them, parameters of at most one dimension.

    Raises:
        RecipeError: a pattern names no parameter of the model.
    """
    kept = {id(p) for p in _named(model, stored.keep, "stored.keep").values()}
    for module in model.modules() if stored.keep_norms else ():
        if "Norm" in type(module).__name__:
            kept |= {id(p) for p in module.parameters(recurse=False) if p.ndim <= 1}
    return frozenset(kept)


def kept_weights(model: nn.Module, kept: Kept) -> dict[str, str]:
    """Why each weight that is left alone is, by name.

    Weights are the parameters of at least two dimensions that are no mere embedding tables.

    Raises:
        RecipeError: a pattern names no parameter of the model.
    """
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    named = [(name, p) for name, p in model.named_parameters() if p.ndim >= 2]
    ordered = [name for name, p in named if id(p) not in embeddings]
    head = _head(model, named, embeddings) if kept.head else None
    reasons = {}
    body = [name for name in ordered if name != head]
    last = max(kept.last, math.ceil(kept.last_share * len(body)))
    for name in body[len(body) - last :] if last else []:
        reasons[name] = f"among the last {last}"
    for name in body[: kept.first]:
        reasons[name] = f"among the first {kept.first}"
    by_name = {id(p) for p in _named(model, kept.names, "kept.names").values()}
    for name, parameter in named:
        if id(parameter) in by_name:
            reasons[name] = "named"
    if head:
        reasons[head] = "the head"
    return reasons


def _head(
    model: nn.Module, named: Sequence[tuple[str, Tensor]], embeddings: set[int]
) -> str | None:
    """The weight that makes the logits.

    A linear layer's that is as long as an embedding, tied to it or not; else the longest embedding,
    which the model may multiply with by itself; without embeddings, the last linear layer's.
    """
    linears = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    lengths = {p.shape[0] for _, p in named if id(p) in embeddings}
    own = [(name, p) for name, p in named if id(p) in linears]
    if not lengths:
        return own[-1][0] if own else None
    long = [name for name, p in own if p.shape[0] in lengths and p.shape[0] == max(lengths)]
    tables = [(p.shape[0], name) for name, p in named if id(p) in embeddings]
    return long[-1] if long else max(tables)[1]


def _named(model: nn.Module, patterns: Iterable[str], field: str) -> dict[str, Tensor]:
    """The parameters that patterns name, under any of the names they have."""
    every = dict(model.named_parameters(remove_duplicate=False))
    found: dict[str, Tensor] = {}
    for pattern in patterns:
        matching = {name: p for name, p in every.items() if _matches(name, pattern)}
        if not matching:
            raise RecipeError(
                f"{field} has the pattern {pattern!r}, and no parameter of the model or its module "
                f"is called so. The model has {', '.join([*every][:5])}"
                f"{' and others' if len(every) > 5 else ''}."
            )
        found |= matching
    return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[0], pattern)
