"""A model that is run and then is what it was before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def unchanged(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Put gradients, buffers and Torch's generators back afterwards.

    Inside, there are no gradients yet, and what the model draws follows from `seed`, dropout for
    one: the same whenever it is entered.
    """
    held = [(p, p.grad) for p in model.parameters()]
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    model.zero_grad(set_to_none=True)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            yield
        finally:
            for parameter, gradient in held:
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


@contextmanager
def on_copies(model: nn.Module, dtype: torch.dtype | None = None) -> Iterator[None]:
    """Parameters and buffers hold copies of their values inside, and afterwards the values again.

    They stay the same objects, so what is tied stays tied, and whatever refers to them sees the
    copies. Gradients are no part of it: see `unchanged`.

    Args:
        model: whose.
        dtype: of copies of floating-point values; None leaves each its own.
    """
    held = [(t, t.data) for t in (*model.parameters(), *model.buffers())]
    try:
        for tensor, values in held:
            wanted = dtype if dtype is not None and values.is_floating_point() else values.dtype
            tensor.data = values.to(wanted, copy=True)
        yield
    finally:
        for tensor, values in held:
            tensor.data = values
